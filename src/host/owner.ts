import { chmod, mkdir, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { copyConfined } from './copy-confined.ts'
import { endProcesses } from './end-processes.ts'
import { Guard } from './guard.ts'
import { createOwnerFolder, MARKER, type OwnerFolder, removeFolder } from './owner-folder.ts'

/** The folders of one execution, all under `root`. */
export interface ExecutionFolder {
  /** `GYRE_SANDBOX=OWNER/NUMBER`, in the environment of everything that runs here. */
  readonly marker: string
  readonly root: string
  readonly workspace: string
  readonly home: string
  readonly tmp: string
  readonly logs: string
  readonly verifierLogs: string
  /** Not there until the scorer makes it. */
  readonly tests: string
}

/** Image recipes: they describe a container, and are no part of the workspace. */
const RECIPES = /^(?:Dockerfile|\.dockerignore|docker-compose\.ya?ml|compose\.ya?ml)$/i

/** What this control process has on the machine: its folder, and the guard that clears it after a kill. */
export class Owner {
  readonly #base: string
  #opened: Promise<{ readonly folder: OwnerFolder; readonly guard: Guard }> | undefined
  #count = 0

  constructor(base: string) {
    this.#base = base
  }

  async guard(): Promise<Guard> {
    return (await this.#open()).guard
  }

  /** A fresh set of folders whose workspace holds a copy of `environment`, when there is such a folder. */
  async createExecution(environment: string): Promise<ExecutionFolder> {
    const { folder, guard } = await this.#open()
    guard.ensureStarted()
    const number = ++this.#count
    const root = join(folder.path, String(number))
    const made = layout(root, `${MARKER}=${folder.id}/${number}`)
    try {
      for (const path of [root, made.workspace, made.home, made.tmp, made.verifierLogs]) {
        await mkdir(path, { recursive: true, mode: 0o700 })
      }
      const found = await stat(environment).catch(() => undefined)
      if (found !== undefined) await copyConfined(environment, made.workspace, (name) => RECIPES.test(name))
      await chmod(made.workspace, 0o700)
    } catch (error) {
      await removeFolder(root)
      throw error
    }
    return made
  }

  /** Ends what still runs in it and removes it. Idempotent. */
  async destroyExecution(folder: ExecutionFolder): Promise<void> {
    await endProcesses({ groups: [], marker: `${folder.marker}\0`, folder: folder.root }, 0)
    await removeFolder(folder.root)
  }

  #open(): Promise<{ readonly folder: OwnerFolder; readonly guard: Guard }> {
    this.#opened ??= createOwnerFolder(this.#base).then((folder) => ({
      folder,
      guard: new Guard(`${MARKER}=${folder.id}/`, folder.path),
    }))
    return this.#opened
  }
}

function layout(root: string, marker: string): ExecutionFolder {
  return {
    marker,
    root,
    workspace: join(root, 'workspace'),
    home: join(root, 'home'),
    tmp: join(root, 'tmp'),
    logs: join(root, 'logs'),
    verifierLogs: join(root, 'logs', 'verifier'),
    tests: join(root, 'tests'),
  }
}
