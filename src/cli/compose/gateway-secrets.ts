/** @file What a gateway keeps secret: where its keys come from, and who may administer it. */
import { createHash, createHmac, randomBytes, timingSafeEqual } from 'node:crypto'
import { chmodSync, existsSync, readFileSync, writeFileSync } from 'node:fs'
import { errorText, GyreError } from '../../core/errors.ts'

const SECRET_BYTES = 32

/**
 * The secret of a file, made on first use and readable by its owner alone.
 * @throws GyreError E_CONFIG_SECRET when the file is empty or cannot be read or written.
 */
export function secretOf(file: string): string {
  try {
    if (!existsSync(file)) {
      writeFileSync(file, `${randomBytes(SECRET_BYTES).toString('base64url')}\n`, { mode: 0o600, flag: 'wx' })
    }
    chmodSync(file, 0o600)
    const secret = readFileSync(file, 'utf8').trim()
    if (secret !== '') return secret
  } catch (error) {
    throw secretError(`${file} cannot be used as a secret: ${errorText(error)}`, error)
  }
  throw secretError(`${file} is empty: write a secret into it, or remove it and a new one is made`)
}

/** The key of an execution follows from the gateway's secret: the same after a restart, and stored nowhere. */
export function executionKey(secret: string, executionId: string): string {
  return createHmac('sha256', secret).update(`execution ${executionId}`).digest('base64url')
}

export function isSameSecret(a: string, b: string): boolean {
  return timingSafeEqual(digest(a), digest(b))
}

function digest(text: string): Buffer {
  return createHash('sha256').update(text).digest()
}

function secretError(message: string, cause?: unknown): GyreError {
  return new GyreError(message, { boundary: 'config', code: 'E_CONFIG_SECRET', cause })
}
