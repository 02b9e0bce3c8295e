'use strict'

// An engine's grammar. unknown lists what it does not know though the server does: text
// finds it, why says what documents it, and instead, where it is given, is an equal that
// the grammar knows, with which the rest of the statement is checked. cut cuts a schema
// step into statements; prepare makes what is sent out of what stands in the file.
module.exports = {
  sqlserver: {
    dialect: 'TSQL',
    cut: text => text.split(/;\n/),
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
    cut: text => text.split(/;\n(?!\s*(?:END|EXCEPTION|ELSE|ELSIF)\b)/),
    prepare: sql => sql.replace(/;?\s*$/, ';'),
    unknown: []
  }
}
