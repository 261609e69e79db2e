/** @file Sends a toy generation as a stream of frames, and makes it go wrong on demand. */
import type { EventStream, Fault } from './base-server.ts'
import { SENTINEL } from './toy-model.ts'
import type { ToyGeneration, ToyToken } from './toy-model.ts'

export interface FrameParts {
  /** Everything up to and including this frame. */
  readonly all: readonly ToyToken[]
  /** The part that is new. */
  readonly fresh: readonly ToyToken[]
  /** `abort` when the server gave up. */
  readonly finish: ToyGeneration['finish'] | 'abort' | undefined
}

export interface TokenStreamOptions {
  readonly chunkTokens: number
  readonly frame: (parts: FrameParts) => string
  readonly errorFrame: (message: string, code: number) => string
  /** After the last frame, before the closing mark. */
  readonly tail?: () => string
  readonly isAborted: () => boolean
}

export async function sendTokens(
  stream: EventStream,
  generation: ToyGeneration,
  fault: Fault | undefined,
  options: TokenStreamOptions,
): Promise<void> {
  const { chunkTokens, frame, isAborted } = options
  const tokens = generation.tokens.map((token, i) =>
    fault?.kind === 'sentinel' && fault.atToken === i ? { ...token, logprob: SENTINEL } : token,
  )
  if (tokens.length === 0) await stream.write(frame({ all: [], fresh: [], finish: generation.finish }))
  for (let at = 0; at < tokens.length; at += chunkTokens) {
    if (isAborted()) {
      await stream.write(frame({ all: tokens.slice(0, at), fresh: [], finish: 'abort' }))
      break
    }
    if (fault !== undefined && 'afterTokens' in fault && at >= fault.afterTokens) {
      if (await wentWrong(stream, fault.kind, tokens.slice(0, at), options)) return
      break
    }
    const next = Math.min(tokens.length, at + chunkTokens)
    const finish = next === tokens.length ? generation.finish : undefined
    const text = frame({ all: tokens.slice(0, next), fresh: tokens.slice(at, next), finish })
    const isHere = fault !== undefined && 'atToken' in fault && fault.atToken >= at && fault.atToken < next
    if (fault?.kind === 'lose' && isHere) continue
    if (!(await stream.write(text))) return
    if (fault?.kind === 'duplicate' && isHere) await stream.write(text)
  }
  await finishStream(stream, tokens, fault, options)
}

async function finishStream(
  stream: EventStream,
  tokens: readonly ToyToken[],
  fault: Fault | undefined,
  { frame, errorFrame, tail }: TokenStreamOptions,
): Promise<void> {
  if (fault?.kind === 'late-frame') {
    await stream.write(frame({ all: [...tokens, ...tokens], fresh: tokens, finish: undefined }))
  }
  if (fault?.kind === 'garbage') await stream.write(errorFrame('', 0).replace('{', ''))
  if (tail !== undefined) await stream.write(tail())
  if (fault?.kind !== 'no-done') await stream.write('data: [DONE]\n\n')
  stream.end()
}

/** @returns true when nothing more may be sent. */
async function wentWrong(
  stream: EventStream,
  kind: Fault['kind'],
  sent: readonly ToyToken[],
  { frame, errorFrame }: TokenStreamOptions,
): Promise<boolean> {
  if (kind === 'die') {
    stream.die()
    return true
  }
  if (kind === 'stall') {
    await stream.untilLeft()
    return true
  }
  const text = kind === 'abort' ? frame({ all: sent, fresh: [], finish: 'abort' }) : errorFrame('EngineCore died', 500)
  await stream.write(text)
  return false
}
