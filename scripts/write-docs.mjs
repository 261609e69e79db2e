// Writes what is generated from the source: the schemas in schema/ and docs/config.md.
// Run with `npm run docs`; test/docs.test.ts fails while they are stale.
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { configMarkdown } from '../src/config/document.ts'
import { configJsonSchema } from '../src/config/json-schema.ts'
import { profileJsonSchema } from '../src/config/profile.ts'

const root = join(import.meta.dirname, '..')
const schema = configJsonSchema()
mkdirSync(join(root, 'schema'), { recursive: true })
writeFileSync(join(root, 'schema/config.schema.json'), `${JSON.stringify(schema, null, 2)}\n`)
writeFileSync(join(root, 'schema/profile.schema.json'), `${JSON.stringify(profileJsonSchema(), null, 2)}\n`)
writeFileSync(join(root, 'docs/config.md'), configMarkdown(schema))
