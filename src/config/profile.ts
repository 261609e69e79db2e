/**
 * @file A harness profile that the user brings: a YAML or JSON file with only what differs from a shipped one.
 *
 * The shape is that of `HarnessProfile` in src/trajectory/profile.ts, which says what the fields do.
 */
import { relative, resolve } from 'node:path'
import { LineCounter, parseDocument } from 'yaml'
import { z } from 'zod'
import type { Json } from '../core/items.ts'
import { count, text } from './fields.ts'
import type { JsonSchema } from './json-schema.ts'
import { configError, failure, placeOf, readText } from './load.ts'
import { problemsOf } from './problems.ts'

/** The shipped profiles that a file can start from. */
export const BASE_PROFILES = ['generic', 'pi', 'claude-code', 'codex', 'opencode', 'qwen-code', 'gemini-cli'] as const

const headerName = z
  .string()
  .regex(/^[a-z0-9!#$%&'*+.^_`|~-]+$/, 'the name of a header, in lower case')
  .describe('Name of a header, in lower case.')
const texts = (meaning: string): z.ZodArray<z.ZodString> => z.array(z.string().min(1)).min(1).describe(meaning)

const signal = z
  .strictObject({
    header: headerName.describe('Header that must be there, in lower case.').exactOptional(),
    headerIncludes: text('What this header must hold. Blanks do not count.').exactOptional(),
    systemIncludes: texts('Texts that the system text must hold.').exactOptional(),
    firstUserIncludes: texts('Texts that the first user text must hold.').exactOptional(),
    firstUserLacks: texts('Texts that the first user text must not hold.').exactOptional(),
    lastUserIncludes: texts('Texts that the user texts after the last turn must hold.').exactOptional(),
    tools: z.enum(['none', 'some']).describe('Whether the call carries tools.').exactOptional(),
  })
  .refine((given) => Object.keys(given).length > 0, 'a condition: a signal without one holds for every call')
  .refine((given) => given.headerIncludes === undefined || given.header !== undefined, {
    message: 'header beside headerIncludes: it says which header',
  })

const signals = (meaning: string): z.ZodArray<typeof signal> => z.array(signal).describe(meaning)

export const ProfileFileSchema = z.strictObject({
  name: text('What recordings and messages call it.'),
  extends: z
    .enum(BASE_PROFILES)
    .describe(
      'Shipped profile that gives the fields left out here. Default: the one of the harness of the run, else generic.',
    )
    .exactOptional(),
  threadHeaders: z
    .array(headerName)
    .describe('Headers that name the thread; the first one that is there wins.')
    .exactOptional(),
  side: signals(
    'Calls beside the task (titles, quota, memory): recorded, not trained. Any one signal is enough.',
  ).exactOptional(),
  summary: signals('Calls that summarize a conversation to shorten it. Any one signal is enough.').exactOptional(),
  subAgent: signals('Calls of agents that the main agent started. Any one signal is enough.').exactOptional(),
  volatileSystemLines: z
    .array(z.string().min(1))
    .describe('How lines of system text begin that change inside a conversation: the policy does not read them.')
    .exactOptional(),
  silenceLimitMs: count(1000, 'Shortest silence after which the harness gives a request up. [ms]').exactOptional(),
  shellTool: z
    .strictObject({
      name: text('The tool.'),
      argument: text('Its argument that takes the command.'),
      extra: z
        .record(z.string(), z.json() as z.ZodType<Json>)
        .describe('Further arguments it insists on.')
        .exactOptional(),
    })
    .describe('The tool that takes a shell command: how scripted policies act in this harness.')
    .exactOptional(),
  headersToRecord: z
    .array(headerName)
    .describe('Headers that recordings keep. Never one with a key in it.')
    .exactOptional(),
})

/** A profile file as it was read. A field that is missing comes from the profile it extends. */
export type ProfileFile = z.output<typeof ProfileFileSchema>

/** Draft 7, because editors know it best. */
export function profileJsonSchema(): JsonSchema {
  const schema = z.toJSONSchema(ProfileFileSchema, { io: 'input', target: 'draft-7' }) as JsonSchema
  return { ...schema, title: 'Gyre harness profile' }
}

/**
 * @param path a YAML or JSON file, relative to `cwd`.
 * @throws GyreError with every problem at once: E_CONFIG_NOT_FOUND, E_CONFIG_SYNTAX, E_CONFIG_UNKNOWN_KEY,
 * E_CONFIG_TYPE, E_CONFIG_MISSING.
 */
export function loadProfile(path: string, cwd: string): ProfileFile {
  const file = resolve(cwd, path)
  const advice = 'give the path of a YAML or JSON file; docs/profiles.md shows one'
  const content = readText(file, `cannot read the harness profile ${path}: ${advice}`)
  const short = relative(cwd, file)
  return parseProfile(content, short.startsWith('..') ? file : short)
}

/** @param label how errors name the file. */
export function parseProfile(content: string, label: string): ProfileFile {
  const lines = new LineCounter()
  const document = parseDocument(content, { lineCounter: lines, prettyErrors: false })
  const [syntax] = document.errors
  if (syntax !== undefined) {
    const { line, col } = lines.linePos(syntax.pos[0])
    throw configError('E_CONFIG_SYNTAX', `${label}:${line}:${col}: not valid YAML: ${syntax.message}`)
  }
  const input: unknown = document.toJS({ maxAliasCount: 100 }) ?? {}
  const parsed = ProfileFileSchema.safeParse(input)
  if (parsed.success) return parsed.data
  const problems = problemsOf(parsed.error.issues, input, profileJsonSchema(), 'the profile')
  throw failure(problems, (at) => placeOf(at, document, lines, [], label))
}
