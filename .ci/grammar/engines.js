'use strict'

// An engine's grammar. unknown lists what it does not know though the server does: text
// finds it, why says what documents it, and instead, where it is given, is an equal that
// the grammar knows, with which the rest of the statement is checked. cut cuts a schema
// step into statements; prepare makes what is sent out of what stands in the file; twice
// finds the keyword that a broken variant has twice.
module.exports = {
  sqlserver: {
    dialect: 'TSQL',
    cut: text => text.split(/;\n/),
    twice: /\b(?:FROM|SET|TABLE|INDEX|VALUES|SCHEMA|GRANT)\b/,
    prepare: sql => sql,
    unknown: [
      {
        text: /^GRANT (?:(?:SELECT|INSERT|UPDATE|DELETE)(?: \(purge_at\))?(?:, )?)+ ON OBJECT::|^GRANT VIEW DEFINITION ON OBJECT::/,
        why: '"GRANT object permissions" has lists, columns and OBJECT::, the grammar one privilege on a name',
        instead: 'GRANT SELECT ON '
      }
    ]
  },
  oracle: {
    dialect: 'PLSQL',
    // Not SET and FROM, which the grammar takes for names, nor INDEX, which hints have.
    twice: /\b(?:CREATE TABLE|VALUES|GRANT)\b/,
    cut: text => text.split(/;\n(?!\s*(?:END|EXCEPTION|ELSE|ELSIF)\b)/),
    // The grammar takes SEQ for a reserved word, which it is not ("Oracle SQL reserved
    // words").
    prepare: sql => sql.replace(/\bseq\b/g, 'seqn').replace(/;?\s*$/, ';'),
    unknown: [
      {
        text: /(?<=AS IDENTITY) \([^)]*\)/,
        why: '"CREATE TABLE", identity_clause: the options of an identity, which stand in parentheses',
        instead: ''
      }
    ]
  }
}
