/**
 * @file The native program of a harness that npm brings in a package for each platform.
 *
 * The package that users install only copies or starts it, from a script that we do not run (see install-package.ts).
 */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { GyreError } from '../../../core/errors.ts'

/** Paths below `node_modules` by `PLATFORM-ARCH` as node names them. The first that is there is taken. */
export type NativePaths = Readonly<Record<string, readonly string[]>>

/** @throws GyreError E_HARNESS_PLATFORM when the installed version has no program for this machine. */
export function nativeProgram(
  harness: string,
  folder: string,
  paths: NativePaths,
  platform: string = `${process.platform}-${process.arch}`,
): string {
  const files = (paths[platform] ?? []).map((path) => join(folder, 'node_modules', path))
  const found = files.find((file) => existsSync(file))
  if (found !== undefined) return found
  const why =
    files.length === 0
      ? `it runs on ${Object.keys(paths).join(', ')}`
      : `this version brings none of ${files.join(', ')}: choose another harness.version, or remove ${folder} if its installation is broken`
  throw new GyreError(`harness ${harness} has no program for ${platform}: ${why}`, {
    boundary: 'harness',
    code: 'E_HARNESS_PLATFORM',
  })
}
