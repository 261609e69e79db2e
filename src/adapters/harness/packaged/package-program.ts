/** @file The script that an installed package declares as its command. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { errorText, GyreError } from '../../../core/errors.ts'

/** Versions move it, so it is read from the package. @throws GyreError E_HARNESS_INSTALL when the package has none. */
export function packageProgram(folder: string, packageName: string, command: string): string {
  const home = join(folder, 'node_modules', packageName)
  const file = join(home, 'package.json')
  let bin: unknown
  try {
    bin = (JSON.parse(readFileSync(file, 'utf8')) as { readonly bin?: unknown }).bin
  } catch (error) {
    throw broken(folder, packageName, `${file} cannot be read (${errorText(error)})`)
  }
  const path = typeof bin === 'object' && bin !== null ? (bin as Record<string, unknown>)[command] : bin
  if (typeof path !== 'string') throw broken(folder, packageName, `${file} has no command ${command}`)
  return join(home, path)
}

function broken(folder: string, packageName: string, reason: string): GyreError {
  return new GyreError(`${packageName} cannot be started: ${reason}: remove ${folder} and install it again`, {
    boundary: 'harness',
    code: 'E_HARNESS_INSTALL',
  })
}
