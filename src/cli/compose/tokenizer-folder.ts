import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { GyreError } from '../../core/errors.ts'
import type { ChatCodec } from '../../tokens/codec.ts'
import { createChatCodec } from '../../tokens/hf-codec.ts'

const REQUIRED = ['tokenizer.json', 'tokenizer_config.json'] as const
const TEMPLATE = 'chat_template.jinja'

/** The tokenizer of a folder in Hugging Face layout. @throws GyreError E_CONFIG_TOKENIZER, E_CONFIG_CHAT_TEMPLATE. */
export function readTokenizerFolder(folder: string): ChatCodec {
  const missing = REQUIRED.find((name) => !existsSync(join(folder, name)))
  if (missing !== undefined) {
    throw new GyreError(
      `${folder} has no ${missing}: give a folder with ${REQUIRED.join(' and ')}, such as a model's`,
      {
        boundary: 'config',
        code: 'E_CONFIG_TOKENIZER',
      },
    )
  }
  const read = (name: string): string => readFileSync(join(folder, name), 'utf8')
  return createChatCodec({
    tokenizerJson: read('tokenizer.json'),
    tokenizerConfigJson: read('tokenizer_config.json'),
    ...(existsSync(join(folder, TEMPLATE)) ? { chatTemplate: read(TEMPLATE) } : {}),
  })
}
