// Package upgrade holds the test that brings the tables of every version of the schema
// to the newest while a relay and producers of that version are at work. testdata has
// the DDL of each version as it was.
package upgrade
