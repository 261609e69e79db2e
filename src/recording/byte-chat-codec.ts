/** @file The tokenizer of recordings that name none: 256 bytes and the marks of our own chat template. */
import { trainBpe } from '../tokens/bpe-trainer.ts'
import { CHAT_SPECIAL_TOKENS, tokenizerFiles } from '../tokens/chat-template.ts'
import type { TokenizerFiles } from '../tokens/chat-template.ts'
import type { ChatCodec } from '../tokens/codec.ts'
import { createChatCodec } from '../tokens/hf-codec.ts'

/** Longest context it is ever asked about. [tokens] */
const MAX_CONTEXT = 1 << 24

/** Any text is exactly its UTF-8 bytes, so what was sampled and its text say the same. */
export function byteChatCodec(): ChatCodec {
  const files = byteTokenizerFiles()
  return createChatCodec({
    tokenizerJson: files['tokenizer.json'],
    tokenizerConfigJson: files['tokenizer_config.json'],
  })
}

/** The same as files in Hugging Face layout. */
export function byteTokenizerFiles(): TokenizerFiles {
  const vocabSize = 256 + CHAT_SPECIAL_TOKENS.length
  return tokenizerFiles(trainBpe([], { vocabSize, specialTokens: CHAT_SPECIAL_TOKENS }), MAX_CONTEXT)
}
