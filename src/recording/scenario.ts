/**
 * @file A scenario: what a harness is told to do, and what a scripted policy answers to each of its model calls.
 *
 * It is a YAML file. docs/recordings.md explains every field; an unknown field or a wrong type is an error with its line.
 */
import { LineCounter, parseDocument } from 'yaml'
import type { Document } from 'yaml'
import { z } from 'zod'
import { GyreError } from '../core/errors.ts'

/** Arguments as an object, or as JSON text that is spoken as it stands. */
const argsSchema = z.union([z.string(), z.record(z.string(), z.json())])

const turnSchema = z
  .strictObject({
    thinking: z.string().optional(),
    text: z.string().optional(),
    calls: z.array(z.strictObject({ tool: z.string().min(1), args: argsSchema.default({}) })).optional(),
    /** One command or several in parallel, through whatever shell tool the harness has. */
    shell: z.union([z.string(), z.array(z.string()).min(1)]).optional(),
    /** What the policy writes, verbatim, markers of the template included. */
    raw: z.string().optional(),
  })
  .refine((turn) => Object.values(turn).some((value) => value !== undefined), {
    message: 'says nothing: give text, thinking, calls, shell or raw',
  })
  .refine((turn) => turn.raw === undefined || Object.values(turn).filter((value) => value !== undefined).length === 1, {
    message: 'raw is the whole turn: give nothing beside it',
  })

const textsSchema = z.array(z.string().min(1))

const whenSchema = z.strictObject({
  /** Anywhere in what the harness wrote. */
  includes: textsSchema.optional(),
  lacks: textsSchema.optional(),
  /** Before the first turn of the policy: tools, system text, first message. */
  firstIncludes: textsSchema.optional(),
  firstLacks: textsSchema.optional(),
  /** After the last turn of the policy. */
  lastIncludes: textsSchema.optional(),
  lastLacks: textsSchema.optional(),
})

const ruleSchema = z.strictObject({
  name: z.string().optional(),
  when: whenSchema.default({}),
  /** Turns are counted from where this text last stands; from the start when it is not there. */
  since: z.string().min(1).optional(),
  /** By the number of earlier turns. A list in place of a turn holds what is said the first, second ... time. */
  turns: z.array(z.union([turnSchema, z.array(turnSchema).min(1)])).min(1),
})

const runSchema = z.strictObject({
  instruction: z.string().min(1),
  args: z.array(z.string()).default([]),
  env: z.record(z.string(), z.string()).default({}),
})

const arrival = z.int().min(0)
const faultSchema = z.discriminatedUnion('kind', [
  /** The whole answer is computed, and the connection is cut before the harness gets any of it. */
  z.strictObject({ arrival, kind: z.literal('lost-response') }),
  /** The connection is cut after this many bytes of the answer's body. */
  z.strictObject({ arrival, kind: z.literal('cut-after-bytes'), bytes: z.int().min(1) }),
  /** The request is passed on only after this time. */
  z.strictObject({ arrival, kind: z.literal('delay'), ms: z.int().min(1) }),
])

const scenarioSchema = z
  .strictObject({
    name: z.string().regex(/^[\w.-]+$/, 'a name of letters, digits, dots and dashes'),
    description: z.string().optional(),
    /** One run of the harness; or `runs`, one after the other in the same home and workspace. */
    instruction: z.string().min(1).optional(),
    runs: z.array(runSchema).min(1).optional(),
    /** Given to every run. */
    args: z.array(z.string()).default([]),
    env: z.record(z.string(), z.string()).default({}),
    files: z.record(z.string(), z.string()).default({}),
    contextWindow: z.int().min(1024).default(200_000),
    maxOutputTokens: z.int().min(16).default(16_000),
    timeoutSeconds: z.number().positive().default(300),
    rules: z.array(ruleSchema).min(1),
    /** Said when the turns of a rule are used up, and where no rule holds. */
    otherwise: turnSchema.default({ text: 'Done.' }),
    faults: z.array(faultSchema).default([]),
  })
  .refine((scenario) => (scenario.instruction === undefined) !== (scenario.runs === undefined), {
    message: 'give either instruction or runs',
  })

type ScenarioFile = z.output<typeof scenarioSchema>
export type ScenarioTurn = z.output<typeof turnSchema>
export type ScenarioRule = z.output<typeof ruleSchema>
export type ScenarioFault = z.output<typeof faultSchema>

/** One start of the harness. */
export interface ScenarioRun {
  readonly instruction: string
  readonly args: readonly string[]
  readonly env: Readonly<Record<string, string>>
}

export interface Scenario extends Omit<ScenarioFile, 'instruction' | 'runs' | 'args' | 'env'> {
  readonly runs: readonly ScenarioRun[]
}

/**
 * @param file Names the text in errors.
 * @throws GyreError E_CONFIG_SCENARIO with the line of every mistake.
 */
export function parseScenario(text: string, file: string): Scenario {
  const lines = new LineCounter()
  const document = parseDocument(text, { lineCounter: lines })
  const [broken] = document.errors
  if (broken !== undefined) throw scenarioError([`${file}: ${broken.message}`])
  const parsed = scenarioSchema.safeParse(document.toJS())
  if (parsed.success) return withRuns(parsed.data)
  const problems = parsed.error.issues.map((issue) => {
    const field = issue.path.map(String).join('.')
    return { line: lineOf(document, lines, issue.path), text: `${field === '' ? '' : `${field}: `}${issue.message}` }
  })
  throw scenarioError(
    problems.toSorted((a, b) => a.line - b.line).map(({ line, text: what }) => `${file}:${line}: ${what}`),
  )
}

/** The same for a scenario that is given as a value. @throws GyreError E_CONFIG_SCENARIO. */
export function scenarioOf(value: z.input<typeof scenarioSchema>): Scenario {
  return parseScenario(JSON.stringify(value), 'scenario')
}

function withRuns({ instruction, runs, args, env, ...rest }: ScenarioFile): Scenario {
  const list = runs ?? [{ instruction: instruction ?? '', args: [], env: {} }]
  return {
    ...rest,
    runs: list.map((run) => ({
      instruction: run.instruction,
      args: [...args, ...run.args],
      env: { ...env, ...run.env },
    })),
  }
}

/** Of the innermost node on the path that is there. */
function lineOf(document: Document, lines: LineCounter, path: readonly PropertyKey[]): number {
  for (let length = path.length; length >= 0; length--) {
    const node: unknown = length === 0 ? document.contents : document.getIn(path.slice(0, length), true)
    if (typeof node !== 'object' || node === null || !('range' in node) || !Array.isArray(node.range)) continue
    return lines.linePos(Number(node.range[0])).line
  }
  return 1
}

function scenarioError(problems: readonly string[]): GyreError {
  return new GyreError(problems.join('\n'), { boundary: 'config', code: 'E_CONFIG_SCENARIO' })
}
