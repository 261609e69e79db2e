/** @file Makes a recording of a session, and only one that replays to the same tree. */
import { GyreError } from '../../core/errors.ts'
import { figuresOf } from '../../recording/figures.ts'
import type { ReplayFigures } from '../../recording/figures.ts'
import type { RecordingFiles, RecordingHead } from '../../recording/format.ts'
import { callNumber, recordSession } from '../../recording/session.ts'
import type { SeenExchange } from '../../recording/session.ts'
import type { ChatCodec } from '../../tokens/codec.ts'
import { harnessProfile } from '../../trajectory/profiles.ts'
import type { ExecutionTree } from '../../trajectory/tree.ts'
import { replayRecording } from './replay-session.ts'
import type { SessionResult } from './scenario-session.ts'

export interface GoldenOptions {
  readonly head: Omit<RecordingHead, 'format' | 'replacedOver'>
  readonly codec: ChatCodec
  /** Folders of this machine that the harness may have seen. */
  readonly folders: readonly string[]
  /** Longer strings of the harness are replaced. [characters] */
  readonly replaceOver?: number
}

export interface Golden {
  readonly files: RecordingFiles
  readonly figures: ReplayFigures
}

/** @throws GyreError E_GATEWAY_RECORDING when the recording does not replay to what happened. */
export async function makeRecording(session: SessionResult, options: GoldenOptions): Promise<Golden> {
  const files = recordSession({
    ...options,
    profile: harnessProfile(options.head.profile),
    exchanges: session.exchanges.map(seenExchange),
    records: session.records,
    folders: [...session.folders, ...options.folders],
  })
  const replay = await replayRecording(files, { codec: options.codec, isOwnTokenizer: true })
  const differences = [...replay.differences, ...treeDifferences(session.tree, replay.tree)]
  const all = { jMax: 5, seed: 0 }
  const figures = figuresOf(replay.tree, replay.wrong.length, all)
  const live = figuresOf(session.tree, replay.wrong.length, all)
  if (JSON.stringify(figures) !== JSON.stringify(live)) {
    differences.push(`live ${JSON.stringify(live)}, replayed ${JSON.stringify(figures)}`)
  }
  if (differences.length === 0) return { files, figures }
  throw new GyreError(`the recording does not replay to what happened: ${differences.join('; ')}`, {
    boundary: 'gateway',
    code: 'E_GATEWAY_RECORDING',
    details: { differences },
  })
}

function seenExchange(exchange: SessionResult['exchanges'][number]): SeenExchange {
  const { call, match, ...seen } = exchange
  return {
    ...seen,
    call: call === undefined ? undefined : callNumber(call.facts.callId),
    order: match?.order,
    committedBefore: match?.committedBefore,
  }
}

/** Shape, speakers and what was sampled; what the harness wrote has other words of the same length. */
function treeDifferences(live: ExecutionTree, replayed: ExecutionTree): readonly string[] {
  const [before, after] = [shapeOf(live), shapeOf(replayed)]
  const at = before.findIndex((line, i) => line !== after[i])
  if (at < 0 && before.length === after.length) return []
  const place = at < 0 ? before.length : at
  return [`node ${place} was ${before[place] ?? 'missing'} and is ${after[place] ?? 'missing'}`]
}

function shapeOf(tree: ExecutionTree): readonly string[] {
  return tree.nodes().map((node) => {
    const facts = `child of ${node.parent}, ${node.provenance}, ${node.tokenIds.length} tokens`
    if (node.provenance === 'harness') return facts
    return `${facts}, ${tree.callOfNode(node.id)?.role ?? ''} ${node.status} ${node.finishReason}`
  })
}
