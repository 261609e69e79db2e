/** @file Tokenizers as folders in Hugging Face layout. */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { GyreError } from '../../core/errors.ts'
import { byteTokenizerFiles } from '../../recording/byte-chat-codec.ts'
import type { ChatCodec } from '../../tokens/codec.ts'
import { createChatCodec } from '../../tokens/hf-codec.ts'

const REQUIRED = ['tokenizer.json', 'tokenizer_config.json'] as const
const TEMPLATE = 'chat_template.jinja'

type Files = Readonly<Record<string, string>>

/** @throws GyreError E_CONFIG_TOKENIZER, E_CONFIG_CHAT_TEMPLATE. */
export function readTokenizerFolder(folder: string): ChatCodec {
  return codecOf(filesIn(folder))
}

/**
 * The tokenizer of a store: the one it was begun with, else the one given, which is then kept beside it, so that its
 * trees can be read without the model.
 * @param useBytes When there is neither.
 * @throws GyreError E_CONFIG_TOKENIZER when the two differ, or there is none; E_CONFIG_CHAT_TEMPLATE.
 */
export function keptTokenizer(kept: string, given: string | undefined, useBytes: boolean): ChatCodec {
  const before = existsSync(join(kept, REQUIRED[0])) ? filesIn(kept) : undefined
  const now = given === undefined ? undefined : filesIn(given)
  if (before !== undefined) {
    if (now !== undefined && !sameFiles(before, now)) {
      throw wrong(`${kept} was begun with another tokenizer than ${given}: take another folder for this one`)
    }
    return codecOf(before)
  }
  const files = now ?? (useBytes ? { ...byteTokenizerFiles() } : undefined)
  if (files === undefined) throw wrong("give --tokenizer: the folder of the model's tokenizer and chat template")
  const codec = codecOf(files)
  mkdirSync(kept, { recursive: true })
  for (const [name, text] of Object.entries(files)) writeFileSync(join(kept, name), text)
  return codec
}

function filesIn(folder: string): Files {
  const missing = REQUIRED.find((name) => !existsSync(join(folder, name)))
  if (missing !== undefined) {
    throw wrong(`${folder} has no ${missing}: give a folder with ${REQUIRED.join(' and ')}, such as a model's`)
  }
  const names = [...REQUIRED, TEMPLATE].filter((name) => existsSync(join(folder, name)))
  return Object.fromEntries(names.map((name) => [name, readFileSync(join(folder, name), 'utf8')]))
}

function codecOf(files: Files): ChatCodec {
  const template = files[TEMPLATE]
  return createChatCodec({
    tokenizerJson: files['tokenizer.json'] ?? '',
    tokenizerConfigJson: files['tokenizer_config.json'] ?? '',
    ...(template === undefined ? {} : { chatTemplate: template }),
  })
}

function sameFiles(a: Files, b: Files): boolean {
  const names = Object.keys({ ...a, ...b })
  return names.every((name) => a[name] === b[name])
}

function wrong(message: string): GyreError {
  return new GyreError(message, { boundary: 'config', code: 'E_CONFIG_TOKENIZER' })
}
