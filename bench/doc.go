// Package bench measures the outbox against what a good engineer would write by
// hand on the same server. Every figure stands beside that baseline's, taken in the
// same run in turns, since machines are noisy and only the ratio means anything.
//
// [Measures] is the table of what is measured and [Run] goes through it. The package
// knows no engine: a [Target] brings the dialect and the [Baseline], which is the
// hand-written SQL as data. `outbox bench` has baselines for PostgreSQL, MySQL,
// MariaDB and SQLite, and docs/performance.md tells how figures come about.
package bench
