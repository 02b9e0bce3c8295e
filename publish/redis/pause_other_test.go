//go:build !unix

package redis_test

import (
	"context"
	"errors"
)

func (b *broker) pause(context.Context) error  { return errors.ErrUnsupported }
func (b *broker) resume(context.Context) error { return errors.ErrUnsupported }
