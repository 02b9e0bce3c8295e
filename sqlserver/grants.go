package sqlserver

// Grants implements [dialect.Granter].
func (s *store) Grants() string {
	text, err := files.ReadFile("schema/grants.sql")
	if err != nil {
		panic(err) // embedded
	}
	return s.name(string(text))
}
