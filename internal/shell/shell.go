// Package shell writes command lines for people to paste.
package shell

import "strings"

// Quote is a text as one word of a command line: whatever it holds, a shell runs nothing
// of it.
func Quote(s string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/@-"
	if s == "" || strings.Trim(s, plain) != "" {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return s
}
