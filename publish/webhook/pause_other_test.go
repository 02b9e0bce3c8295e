//go:build !unix

package webhook_test

import (
	"context"
	"errors"
)

func (e *endpoint) pause(context.Context) error  { return errors.ErrUnsupported }
func (e *endpoint) resume(context.Context) error { return errors.ErrUnsupported }
