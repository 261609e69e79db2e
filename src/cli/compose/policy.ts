/** @file The files of a run's policy: tokenizer, chat template, and what the harness was found to say. */
import { copyFileSync, existsSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { RunConfig } from '../../config/resolve.ts'
import { GyreError } from '../../core/errors.ts'
import type { Item } from '../../core/items.ts'
import type { ChatCodec } from '../../tokens/codec.ts'
import { createChatCodec } from '../../tokens/hf-codec.ts'
import type { Calibration } from './calibrate.ts'
import { type ColdStartOptions, demonstrations, policyTokenizer } from './cold-start.ts'

const TOKENIZER_FILES = ['tokenizer.json', 'tokenizer_config.json'] as const
const CALIBRATION = 'calibration.json'
/** Conversations the tokenizer is trained on; more change nothing. */
const CORPUS = 600

export interface Policy {
  readonly codec: ChatCodec
  /** Empty when there is no cold start. */
  readonly conversations: readonly (readonly Item[])[]
  /** The same without filler: single turns of them are learned first. */
  readonly plainConversations: readonly (readonly Item[])[]
  /** Puts the tokenizer beside saved weights, so that the folder is a complete model. */
  readonly copyTokenizer: (folder: string) => void
}

/**
 * Makes the files on the first attempt of a run and reads them on later ones.
 * @param calibrate asks the harness; called at most once per run.
 * @throws GyreError E_CONFIG_POLICY when a run without a cold start names no model to start from.
 */
export async function composePolicy(
  config: RunConfig,
  folder: string,
  calibrate: () => Promise<Calibration>,
): Promise<Policy> {
  const { warmstart } = config
  let conversations: readonly (readonly Item[])[] = []
  let plainConversations = conversations
  if (warmstart.enabled) {
    const file = join(folder, CALIBRATION)
    if (!existsSync(file)) writeFileSync(file, JSON.stringify(await calibrate(), null, 2))
    const calibration = JSON.parse(readFileSync(file, 'utf8')) as Calibration
    const family = config.tasks.generate ?? { minStops: 3, maxStops: 5, fillerLines: 0, talks: false }
    const options: ColdStartOptions = {
      seed: config.seed,
      count: warmstart.demonstrations,
      goOn: warmstart.goOn,
      minStops: family.minStops,
      maxStops: family.maxStops,
      fillerLines: family.fillerLines,
      talks: family.talks,
    }
    conversations = demonstrations(calibration, options)
    plainConversations =
      options.fillerLines === 0 ? conversations : demonstrations(calibration, { ...options, fillerLines: 0 })
  }
  if (!existsSync(join(folder, 'tokenizer.json'))) writeTokenizer(config, folder, conversations)
  const codec = createChatCodec({
    tokenizerJson: readFileSync(join(folder, 'tokenizer.json'), 'utf8'),
    tokenizerConfigJson: readFileSync(join(folder, 'tokenizer_config.json'), 'utf8'),
  })
  return {
    codec,
    conversations,
    plainConversations,
    copyTokenizer: (to) => {
      for (const name of TOKENIZER_FILES) copyFileSync(join(folder, name), join(to, name))
    },
  }
}

function writeTokenizer(config: RunConfig, folder: string, conversations: readonly (readonly Item[])[]): void {
  const { policy } = config
  if (conversations.length === 0) {
    throw new GyreError(
      'a new policy without a cold start cannot call tools: set warmstart.enabled=true, or policy.init=folder and policy.folder=MODEL',
      { boundary: 'config', code: 'E_CONFIG_POLICY' },
    )
  }
  const { vocabSize, split } = policy.tokenizer
  const files = policyTokenizer(conversations.slice(0, CORPUS), { vocabSize, split, context: policy.model.context })
  for (const name of TOKENIZER_FILES) writeFileSync(join(folder, name), files[name])
}
