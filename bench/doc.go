// Package bench measures the outbox against what a good engineer would write by
// hand, on the same server in the same run, since only the ratio means
// anything. Run it with
//
//	go test -run '^$' -bench . ./bench
package bench
