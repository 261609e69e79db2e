/** @file What a program in the sandbox sees of the file system, as arguments of bwrap. Everything else is absent. */
import { existsSync, lstatSync, readlinkSync } from 'node:fs'
import { posix } from 'node:path'
import type { ExecutionFolder } from '../../../host/owner.ts'

/** The same in every execution, so that no prompt differs by a path. */
export const INSIDE = {
  workspace: '/workspace',
  home: '/home/agent',
  tmp: '/tmp',
  logs: '/logs',
  verifierLogs: '/logs/verifier',
  tests: '/tests',
  relay: '/run/gyre/relay.mjs',
  socket: '/run/gyre/gateway.sock',
} as const

/** Program folders that are links into /usr on merged systems. */
const TOP_LEVEL = ['/bin', '/sbin', '/lib', '/lib32', '/lib64', '/libx32']
/** What programs need of /etc: libraries, names, certificates, time zone, interpreters. No password hash, no key. */
const ETC = [
  'alternatives',
  'bash.bashrc',
  'ca-certificates',
  'ca-certificates.conf',
  'debian_version',
  'fonts',
  'group',
  'hosts',
  'java-17-openjdk',
  'ld.so.cache',
  'ld.so.conf',
  'ld.so.conf.d',
  'localtime',
  'mime.types',
  'nsswitch.conf',
  'os-release',
  'passwd',
  'perl',
  'pki',
  'profile',
  'python3',
  'python3.11',
  'services',
  'shells',
  'ssl/certs',
  'ssl/openssl.cnf',
  'terminfo',
].map((name) => `/etc/${name}`)

/** Host paths under these are seen at the same place. */
function visiblePrefixes(extra: readonly string[]): readonly string[] {
  return ['/usr', ...TOP_LEVEL, ...extra]
}

function isUnder(path: string, folders: readonly string[]): boolean {
  return folders.some((folder) => path === folder || path.startsWith(`${folder}/`))
}

export function systemMounts(): readonly string[] {
  const args = ['--ro-bind', '/usr', '/usr', '--proc', '/proc', '--dev', '/dev']
  for (const path of TOP_LEVEL) {
    const stat = lstatSync(path, { throwIfNoEntry: false })
    if (stat?.isSymbolicLink() === true) args.push('--symlink', readlinkSync(path), path)
    else if (stat !== undefined) args.push('--ro-bind', path, path)
  }
  for (const path of ETC) args.push('--ro-bind-try', path, path)
  return args
}

/** @param shown folders of the host seen read-only at their own path; they may lie under /tmp, but cover nothing else. */
export function executionMounts(
  folder: ExecutionFolder,
  shown: readonly string[],
  socket: string,
  relay: string,
): readonly string[] {
  const args = ['--bind', folder.tmp, INSIDE.tmp]
  for (const path of shown) if (!isUnder(path, visiblePrefixes([]))) args.push('--ro-bind', path, path)
  args.push('--bind', folder.workspace, INSIDE.workspace, '--bind', folder.home, INSIDE.home)
  args.push('--bind', folder.verifierLogs, INSIDE.verifierLogs)
  if (existsSync(folder.tests)) args.push('--bind', folder.tests, INSIDE.tests)
  args.push('--ro-bind', relay, INSIDE.relay, '--ro-bind', socket, INSIDE.socket)
  // The root is memory: what a program writes must land in one of the folders above.
  args.push('--remount-ro', '/')
  return args
}

/** Where the host has what the sandbox sees as `path`; undefined when it sees nothing there. */
export function hostPath(path: string, folder: ExecutionFolder, shown: readonly string[]): string | undefined {
  const normal = posix.normalize(path)
  if (isUnder(normal, visiblePrefixes(shown))) return normal
  for (const name of ['workspace', 'home', 'tmp', 'verifierLogs', 'tests'] as const) {
    if (isUnder(normal, [INSIDE[name]])) return folder[name] + normal.slice(INSIDE[name].length)
  }
  return undefined
}
