package postgres

import "strings"

// Grants implements [dialect.Granter].
func (s *store) Grants() string {
	text, err := files.ReadFile("schema/grants.sql")
	if err != nil {
		panic(err) // embedded
	}
	// The sequence that the identity of ready.seq makes is named after both.
	sequence := quote(s.tables.Prefix + "_seq_seq")
	usage := ""
	if s.tables.Schema != "" {
		sequence = quote(s.tables.Schema) + "." + sequence
		usage = "\n-- Without it the tables are not even found.\nGRANT USAGE ON SCHEMA " + quote(s.tables.Schema) +
			" TO outbox_producer, outbox_relay, outbox_operator, outbox_consumer;\n"
	}
	// Names are filled in by one pass over the parts, because they may hold anything.
	before, after, _ := strings.Cut(string(text), "{sequence}")
	return s.name(before) + sequence + s.name(after) + usage
}
