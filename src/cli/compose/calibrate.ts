/**
 * @file One run of the real harness with a scripted expert: how does this harness word things?
 *
 * Demonstrations have to look like what the policy will meet: the harness's own system prompt and tools,
 * the way it passes the instruction on, and what it says when a command printed nothing.
 */
import { mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { ScriptedEngine, scriptedTurns } from '../../adapters/engine/scripted/scripted.ts'
import { loadTasks } from '../../adapters/tasks/harbor/load-tasks.ts'
import { CLOSING_TEXT, type ToolManners, trailExchanges } from '../../adapters/tasks/trail/demonstrations.ts'
import { type TrailTask, trailTasks } from '../../adapters/tasks/trail/trail.ts'
import { writeTrailTasks } from '../../adapters/tasks/trail/write.ts'
import { GyreError } from '../../core/errors.ts'
import { engineId, executionId } from '../../core/ids.ts'
import type { AssistantItem, Item, ToolSpec } from '../../core/items.ts'
import { seededRng } from '../../core/rng.ts'
import { createGateway } from '../../gateway/gateway.ts'
import type { Harness } from '../../ports/harness.ts'
import type { Sandbox } from '../../ports/sandbox.ts'
import type { Scorer } from '../../ports/scorer.ts'
import { type ExecutionSettings, runExecution } from '../../run/execution.ts'
import { trainBpe } from '../../tokens/bpe-trainer.ts'
import { CHAT_SPECIAL_TOKENS, tokenizerFiles } from '../../tokens/chat-template.ts'
import { createChatCodec } from '../../tokens/hf-codec.ts'
import { ExecutionTree } from '../../trajectory/tree.ts'
import { MemorySink } from './memory-sink.ts'

export interface Calibration {
  /** What the harness sends before the instruction: tools and system prompt. */
  readonly header: readonly Item[]
  /** The user item around an instruction, which stands at `{instruction}`. */
  readonly userText: string
  /** The workspace of the calibration as it stands in the header; every execution has another one. */
  readonly workspace: string
  readonly manners: ToolManners
}

export interface CalibrateDeps {
  readonly harness: Harness
  readonly sandbox: Sandbox
  readonly scorer: Scorer
  readonly settings: ExecutionSettings
  /** Scratch folder, removed at the end. */
  readonly folder: string
}

const INSTRUCTION = '{instruction}'

/** @throws GyreError E_HARNESS_CALIBRATION when the expert's solution does not earn the full reward through this harness. */
export async function calibrate(deps: CalibrateDeps, stop: AbortSignal): Promise<Calibration> {
  const [trail] = trailTasks({ seed: 0, split: 'calibration', count: 1, minStops: 3, maxStops: 3 })
  if (trail === undefined) throw calibrationError('there is no task to try')
  mkdirSync(deps.folder, { recursive: true })
  writeTrailTasks([trail], join(deps.folder, 'tasks'))
  const [task] = await loadTasks(join(deps.folder, 'tasks'))
  if (task === undefined) throw calibrationError('there is no task to try')
  const files = tokenizerFiles(trainBpe([], { vocabSize: 512, specialTokens: CHAT_SPECIAL_TOKENS }), 1 << 20)
  const codec = createChatCodec({
    tokenizerJson: files['tokenizer.json'],
    tokenizerConfigJson: files['tokenizer_config.json'],
  })
  const sink = new MemorySink()
  const gateway = await createGateway({ codec, sink, model: deps.settings.model, maxContext: 1 << 20 })
  try {
    const id = executionId('calibration')
    const engine = engineId('expert')
    gateway.setEngine(new ScriptedEngine({ id: engine, script: scriptedTurns(codec, expert(trail)) }))
    gateway.setRoutes([{ executionId: id, engineId: engine, routeEpoch: 0 }])
    const folder = join(deps.folder, 'execution')
    mkdirSync(folder, { recursive: true })
    const report = await runExecution(
      {
        forwarding: gateway,
        sandbox: deps.sandbox,
        harness: deps.harness,
        scorer: deps.scorer,
        gatewayUrl: gateway.url,
        executionFolder: () => folder,
        // The probe's tokenizer knows bytes only, so a turn takes many tokens.
        settings: { ...deps.settings, contextWindow: 1 << 20, maxOutputTokens: 1 << 13, maxCalls: 0 },
      },
      { executionId: id, task, seed: 0, stop },
    )
    if (report.error !== undefined) throw report.error
    if (report.score?.reward !== 1) {
      throw calibrationError(`an expert's solution earned ${report.score?.reward ?? 'no score'} instead of 1`)
    }
    return readCalibration(ExecutionTree.fromRecords(id, sink.records(id)), trail)
  } finally {
    await gateway.close()
    rmSync(deps.folder, { recursive: true, force: true })
  }
}

/** Speaks through whatever shell tool the harness offers. */
function expert(trail: TrailTask): (turn: number, context: string) => AssistantItem {
  const exchanges = trailExchanges(trail, 1, seededRng(0))
  return (turn, context) => {
    const exchange = exchanges[turn]
    if (exchange === undefined) return { kind: 'assistant', thinking: '', text: CLOSING_TEXT, toolCalls: [] }
    const shell = shellTool(toolsIn(context))
    const argumentsText = JSON.stringify({ [shell.argument]: exchange.command })
    return {
      kind: 'assistant',
      thinking: '',
      text: '',
      toolCalls: [{ id: `call_${turn}_0`, name: shell.tool, argumentsText }],
    }
  }
}

/** The tools section of our chat template holds one JSON object per line. */
function toolsIn(context: string): readonly ToolSpec[] {
  return context
    .split('\n')
    .filter((line) => line.startsWith('{"name"'))
    .flatMap((line) => {
      try {
        return [JSON.parse(line) as ToolSpec]
      } catch {
        return []
      }
    })
}

/** The tool that takes a shell command, and the name of that argument. */
function shellTool(tools: readonly ToolSpec[]): { readonly tool: string; readonly argument: string } {
  for (const { name, parameters } of tools) {
    const properties = typeof parameters === 'object' && parameters !== null ? Object.entries(parameters) : []
    const fields = properties.find(([key]) => key === 'properties')?.[1]
    const argument = ['command', 'cmd'].find((key) => Object.hasOwn((fields ?? {}) as object, key))
    if (argument !== undefined) return { tool: name, argument }
  }
  throw calibrationError(`it offers no tool that takes a shell command (tools: ${tools.map((t) => t.name).join(', ')})`)
}

function readCalibration(tree: ExecutionTree, trail: TrailTask): Calibration {
  const last = tree.calls().at(-1)
  if (last === undefined) throw calibrationError('it made no model call')
  const items = tree
    .pathNodes(last.node)
    .flatMap((node): readonly Item[] => (node.provenance === 'harness' ? node.items : [node.turn]))
  const user = items.findIndex((item) => item.kind === 'user' && item.text.includes(trail.instruction))
  const userItem = items[user]
  if (userItem?.kind !== 'user') throw calibrationError('its requests do not contain the instruction')
  const header = items.slice(0, user)
  const tools = header.flatMap((item) => (item.kind === 'tools' ? item.tools : []))
  const results = items.flatMap((item) => (item.kind === 'tool-result' ? [item.text] : []))
  return {
    header,
    userText: userItem.text.replace(trail.instruction, INSTRUCTION),
    workspace: workspaceIn(header),
    manners: { ...shellTool(tools), emptyResult: results.at(-1) ?? '' },
  }
}

/** The one absolute path ending in `/workspace` that the header mentions, '' when there is none. */
function workspaceIn(header: readonly Item[]): string {
  const text = header.map((item) => (item.kind === 'system' || item.kind === 'user' ? item.text : '')).join('\n')
  return /\/\S*\/workspace(?![\w-])|\/workspace(?![\w-])/.exec(text)?.[0] ?? ''
}

/** The user item of an instruction, worded as the harness words it. */
export function userItemOf(calibration: Calibration, instruction: string): Item {
  return { kind: 'user', text: calibration.userText.replace(INSTRUCTION, instruction) }
}

function calibrationError(what: string): GyreError {
  return new GyreError(`the harness cannot be used for generated demonstrations: ${what}`, {
    boundary: 'harness',
    code: 'E_HARNESS_CALIBRATION',
  })
}
