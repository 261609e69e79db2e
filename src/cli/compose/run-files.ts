/** @file The run folder: one owner at a time, and nothing of an earlier run is ever overwritten. */
import { accessSync, constants, existsSync, mkdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join, relative } from 'node:path'
import { errorText, GyreError } from '../../core/errors.ts'
import { LEDGER, RESOLVED_CONFIG } from '../run-folder.ts'

export interface RunFiles {
  readonly folder: string
  readonly ledger: string
  readonly policy: string
  readonly tasks: string
  readonly logs: string
  readonly executions: string
  /** Absolute path of a file of the run. */
  readonly file: (name: string) => string
  readonly relative: (path: string) => string
  readonly checkpoint: (step: number) => string
  /** Forgets a run that never got anywhere, so that its name is free. */
  readonly discardLedger: () => void
  /** Gives the folder back. Idempotent. */
  readonly release: () => void
}

export interface RunFolderRequest {
  readonly folder: string
  /** Written into the folder; undefined leaves the config of the run as it is. */
  readonly resolvedYaml: string | undefined
  /** Go on with what is there. */
  readonly resume: boolean
  /** Move an earlier run of this name aside. */
  readonly fresh: boolean
}

const LOCK = 'run.lock'

/**
 * @throws GyreError E_CONFIG_RUN_FOLDER (cannot be written), E_CONFIG_RUN_EXISTS, E_CONFIG_RUN_BUSY,
 * E_CONFIG_NOTHING_TO_RESUME.
 */
export function openRunFolder(request: RunFolderRequest): RunFiles {
  const { folder } = request
  const exists = existsSync(join(folder, LEDGER))
  if (exists) refuseBusy(folder)
  if (request.resume && !exists) {
    throw configError('E_CONFIG_NOTHING_TO_RESUME', `there is no run in ${folder}: start it without --resume`)
  }
  if (exists && !request.resume) {
    if (!request.fresh) {
      throw configError(
        'E_CONFIG_RUN_EXISTS',
        `${folder} holds a run already: add --resume to go on with it, --fresh to move it aside, or name=OTHER`,
      )
    }
    moveAside(folder)
  }
  const at = (name: string): string => join(folder, name)
  try {
    for (const name of ['', 'logs', 'executions', 'checkpoints', 'policy']) mkdirSync(at(name), { recursive: true })
    accessSync(folder, constants.W_OK)
    writeFileSync(at(LOCK), String(process.pid))
    if (request.resolvedYaml !== undefined) writeFileSync(at(RESOLVED_CONFIG), request.resolvedYaml)
  } catch (error) {
    throw configError(
      'E_CONFIG_RUN_FOLDER',
      `the run folder ${folder} cannot be written (${errorText(error)}): choose another with paths.runs=FOLDER`,
      error,
    )
  }
  return {
    folder,
    ledger: at(LEDGER),
    policy: at('policy'),
    tasks: at('tasks'),
    logs: at('logs'),
    executions: at('executions'),
    file: at,
    relative: (path) => relative(folder, path),
    checkpoint: (step) => emptyFolder(at(join('checkpoints', `step_${step}`))),
    discardLedger: () => {
      for (const suffix of ['', '-wal', '-shm', '.lock']) rmSync(at(`${LEDGER}${suffix}`), { force: true })
    },
    release: () => rmSync(at(LOCK), { force: true }),
  }
}

/** A checkpoint that was being written when the run was killed is no checkpoint. */
function emptyFolder(path: string): string {
  rmSync(path, { recursive: true, force: true })
  mkdirSync(path, { recursive: true })
  return path
}

function refuseBusy(folder: string): void {
  const lock = join(folder, LOCK)
  if (!existsSync(lock)) return
  const pid = Number(readFileSync(lock, 'utf8'))
  if (!isAlive(pid) || pid === process.pid) return
  throw configError(
    'E_CONFIG_RUN_BUSY',
    `process ${pid} is training in ${folder}: wait for it, stop it, or give this run another name=OTHER`,
  )
}

function isAlive(pid: number): boolean {
  if (!Number.isInteger(pid) || pid <= 0) return false
  try {
    process.kill(pid, 0)
    return true
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

function moveAside(folder: string): void {
  let number = 1
  while (existsSync(`${folder}.old-${number}`)) number++
  mkdirSync(dirname(folder), { recursive: true })
  renameSync(folder, `${folder}.old-${number}`)
}

function configError(code: `E_CONFIG_${Uppercase<string>}`, message: string, cause?: unknown): GyreError {
  return new GyreError(message, { boundary: 'config', code, cause })
}
