'use strict'

// Parses the golden SQL of engines that cannot be run where this is checked:
//
//	npm ci --prefix .ci/grammar && node .ci/grammar/check.js [file…]
//
// Without files it takes testdata/*.sql of the folders below that exist. A folder's name
// tells the grammar. The grammars (antlr4ts-sql) are approximations: what they accept may
// still be refused by a server, and a few things a server accepts are unknown to them.
// The latter are listed, each with its reason, and one that parses all the same is an
// error. A check that cannot fail is none: of every statement that is accepted, broken
// variants must be rejected.

const fs = require('fs')
const path = require('path')
const { antlr4tsSQL, SQLDialect } = require('antlr4ts-sql')
const { BailErrorStrategy } = require('antlr4ts')
const { PredictionMode } = require('antlr4ts/atn/PredictionMode')
const { ParseCancellationException } = require('antlr4ts/misc/ParseCancellationException')

// Statements that a grammar does not know, by folder: what identifies them in the text,
// and why they are right all the same.
const engines = require('./engines.js')

const root = path.join(__dirname, '..', '..')

// errorsOf parses one statement and returns what the grammar has against it.
function errorsOf (dialect, sql) {
  // SLL is faster and accepts nothing that the full prediction, LL, would refuse.
  return accepts(dialect, sql, PredictionMode.SLL) ? [] : parse(dialect, sql, PredictionMode.LL)
}

// accepts parses one statement and gives up at its first error.
function accepts (dialect, sql, mode) {
  try {
    return parse(dialect, sql, mode, new BailErrorStrategy()).length === 0
  } catch (e) {
    if (e instanceof ParseCancellationException) return false
    throw e
  }
}

function parse (dialect, sql, mode, strategy) {
  const errors = []
  const listener = {
    syntaxError (_recognizer, _symbol, line, column, message) { errors.push(`${line}:${column} ${message}`) }
  }
  const grammar = new antlr4tsSQL(dialect)
  const parser = grammar.getParser(grammar.getTokens(sql, [listener]), [listener])
  parser.interpreter.setPredictionMode(mode)
  if (strategy) parser.errorHandler = strategy
  grammar.getParseTree(parser)
  return errors
}

// statementsOf cuts a golden file at its headings, and the texts of schema steps at the
// semicolons that end a line, or at the slashes that end a block.
function * statementsOf (engine, text) {
  const parts = text.split(/^-- (step \d+: .+|[A-Za-z]+) --$/m)
  for (let i = 1; i < parts.length; i += 2) {
    const name = parts[i]
    const pieces = name.startsWith('step ') || name === 'grants' ? engine.cut(parts[i + 1]) : [parts[i + 1]]
    for (const piece of pieces) {
      const sql = piece.replace(/^\s*--.*$/gm, '').trim()
      if (sql) yield { name, sql }
    }
  }
}

// mutants are broken variants of a statement: none of them may be accepted.
function mutantsOf (engine, sql) {
  const list = {}
  const add = (what, text) => { if (text !== sql) list[what] = text }
  const close = sql.lastIndexOf(')')
  if (close >= 0) add('without its last closing parenthesis', sql.slice(0, close) + sql.slice(close + 1))
  add('with a closing parenthesis at its end', sql.replace(/;?\s*$/, ' )$&'))
  add('with a keyword twice', sql.replace(engine.twice, '$& $&'))
  add('with WHERE and nothing else', sql.replace(/\bWHERE\b[^]*$/, 'WHERE'))
  return list
}

// broken are the statements whose variants were tried, by folder, name and beginning:
// the files of a folder differ in names only.
const broken = new Set()

function check (file, failures) {
  const folder = path.basename(path.dirname(path.dirname(path.resolve(file))))
  const engine = engines[folder]
  if (!engine) throw new Error(`${file}: no grammar for folder ${folder}`)
  const dialect = SQLDialect[engine.dialect]
  let statements = 0
  let mutants = 0
  for (const { name, sql } of statementsOf(engine, fs.readFileSync(file, 'utf8'))) {
    const title = `${path.relative(root, path.resolve(file))}: ${name}: ${sql.split('\n')[0].slice(0, 60)}`
    statements++
    const unknown = engine.unknown.find(u => u.text.test(sql))
    let known = sql
    if (unknown) {
      if (errorsOf(dialect, engine.prepare(sql)).length === 0) {
        failures.push(`${title}: parses, but is listed as unknown to the grammar (${unknown.why})`)
      }
      if (unknown.instead === undefined) continue
      known = sql.replace(unknown.text, unknown.instead)
    }
    const errors = errorsOf(dialect, engine.prepare(known))
    if (errors.length > 0) {
      failures.push(`${title}\n    ${errors.slice(0, 3).map(e => e.slice(0, 200)).join('\n    ')}`)
      continue
    }
    const id = `${folder} ${name} ${known.slice(0, 12)} ${statements}`
    if (broken.has(id)) continue
    broken.add(id)
    for (const [what, text] of Object.entries(mutantsOf(engine, known))) {
      mutants++
      if (accepts(dialect, engine.prepare(text), PredictionMode.LL)) failures.push(`${title}: still parses ${what}`)
    }
  }
  if (statements === 0) failures.push(`${file}: holds no statement`)
  console.log(`${path.relative(root, path.resolve(file))}: ${statements} statements, ${mutants} broken variants`)
}

let files = process.argv.slice(2)
if (files.length === 0) {
  for (const folder of Object.keys(engines)) {
    const testdata = path.join(root, folder, 'testdata')
    if (!fs.existsSync(testdata)) continue
    for (const name of fs.readdirSync(testdata).sort()) {
      if (name.endsWith('.sql')) files.push(path.join(testdata, name))
    }
  }
}
const failures = []
for (const file of files) check(file, failures)
for (const failure of failures) console.error(failure)
process.exitCode = failures.length > 0 || files.length === 0 ? 1 : 0
