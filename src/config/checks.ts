/** @file What contradicts itself across the fields of a run file. Pure. */
import type { Finding } from './finding.ts'
import { leverFindings, leversOf } from './levers.ts'
import type { RunFile } from './schema.ts'

/** Checks across fields, each with its meaning. */
export function findings(file: RunFile): readonly Finding[] {
  return [
    ...leverFindings(file),
    ...capacityFindings(file),
    ...standaloneFindings(file),
    ...taskFindings(file),
    ...modelFindings(file),
    ...harnessFindings(file),
  ]
}

function capacityFindings(file: RunFile): readonly Finding[] {
  const { elastic, training, rollout } = file
  const found: Finding[] = []
  const { policy, cells, slotsPerCell, trainingCells } = elastic
  const { carryOverMax: most } = leversOf(file)
  const beside = elastic.standalone.reduce((sum, { slots }) => sum + slots, 0)
  const carried = Math.ceil(most * training.groupsPerStep) * rollout.groupSize
  const stays = (cells - 1) * slotsPerCell + beside
  if ((policy === 'elastic' || policy === 'qwengyre') && carried > stays) {
    const key = elastic.carryOverMax === undefined ? 'carryOver' : 'carryOverMax'
    const engines = beside === 0 ? '' : ` + ${beside} of standalone engines`
    found.push({
      severity: 'error',
      code: 'E_CONFIG_CAPACITY',
      path: ['elastic', key],
      message:
        `training could never start: up to ${carried} executions stay unfinished (${key} ${most} x ${training.groupsPerStep} groups x ` +
        `${rollout.groupSize}), but the cells left when the core trains hold ${stays} (${cells - 1} x ${slotsPerCell} slots${engines}): ` +
        `lower elastic.${key}, or raise elastic.slotsPerCell or elastic.cells`,
    })
  }
  if (policy === 'async' && trainingCells >= cells && beside === 0) {
    found.push({
      severity: 'error',
      code: 'E_CONFIG_CAPACITY',
      path: ['elastic', 'trainingCells'],
      message: `no cell is left to roll out: async needs trainingCells (${trainingCells}) below cells (${cells})`,
    })
  }
  return found
}

/** An embedded engine is started by us, every other is reached by its URL. */
function standaloneFindings({ elastic }: RunFile): readonly Finding[] {
  return elastic.standalone.flatMap((engine, index) => {
    const at = (key: string): string[] => ['elastic', 'standalone', String(index), key]
    if (engine.kind !== 'embedded') {
      const needed = `${engine.kind} needs the base URL of its server: give url`
      return [
        ...(engine.url === undefined ? [conflict(at('url'), needed)] : []),
        ...(engine.url !== undefined && !isHttpUrl(engine.url)
          ? [conflict(at('url'), `"${engine.url}" is no base URL: write it like http://127.0.0.1:30000`)]
          : []),
        ...(engine.model !== undefined && engine.kind !== 'vllm'
          ? [conflict(at('model'), `${engine.kind} serves one model: take model out`)]
          : []),
      ]
    }
    const remote = (['url', 'model', 'apiKey'] as const).find((key) => engine[key] !== undefined)
    return remote === undefined
      ? []
      : [conflict(at(remote), `${remote} is only for a server you started: an embedded engine has none`)]
  })
}

function isHttpUrl(text: string): boolean {
  return /^https?:\/\/[^\s/]+/.test(text)
}

function taskFindings({ tasks, warmstart }: RunFile): readonly Finding[] {
  const found: Finding[] = []
  const folders = tasks.train !== undefined || tasks.heldOut !== undefined
  if (tasks.generate !== undefined && folders) {
    found.push(conflict(['tasks'], 'give either tasks.generate or the folders tasks.train and tasks.heldOut, not both'))
  }
  if (tasks.generate === undefined && (tasks.train === undefined || tasks.heldOut === undefined)) {
    found.push(conflict(['tasks'], 'give the folders tasks.train and tasks.heldOut, or tasks.generate'))
  }
  if (tasks.generate !== undefined && tasks.generate.minStops > tasks.generate.maxStops) {
    found.push(conflict(['tasks', 'generate', 'minStops'], 'minStops is above maxStops'))
  }
  if (warmstart.enabled && tasks.generate === undefined) {
    found.push(
      conflict(['warmstart', 'enabled'], 'demonstrations are generated with the tasks: warmstart needs tasks.generate'),
    )
  }
  return found
}

function modelFindings({ policy, rollout }: RunFile): readonly Finding[] {
  if (policy.init === 'folder') {
    return policy.folder === undefined ? [conflict(['policy', 'folder'], 'init: folder needs policy.folder')] : []
  }
  const { hiddenSize, heads, kvHeads, ffSize, context } = policy.model
  const found: Finding[] = []
  if (policy.folder !== undefined)
    found.push(conflict(['policy', 'folder'], 'policy.folder is given, but init is random: set init: folder'))
  if (hiddenSize % heads !== 0 || (hiddenSize / heads) % 8 !== 0) {
    found.push(
      conflict(['policy', 'model', 'heads'], `hiddenSize / heads = ${hiddenSize} / ${heads} must be a multiple of 8`),
    )
  }
  if (heads % kvHeads !== 0)
    found.push(conflict(['policy', 'model', 'kvHeads'], `kvHeads ${kvHeads} does not divide heads ${heads}`))
  if (ffSize % 4 !== 0) found.push(conflict(['policy', 'model', 'ffSize'], `ffSize ${ffSize} must be a multiple of 4`))
  if (rollout.maxTokens >= context) {
    const message = `rollout.maxTokens ${rollout.maxTokens} leaves no room for a prompt in ${context} tokens`
    found.push(conflict(['rollout', 'maxTokens'], message))
  }
  return found
}

function harnessFindings({ harness }: RunFile): readonly Finding[] {
  const path = ['harness', 'argv']
  if (harness.name === 'command' && harness.argv.length === 0) {
    return [conflict(path, 'harness command needs argv: the program and its arguments')]
  }
  if (harness.name !== 'command' && harness.argv.length > 0) {
    return [conflict(path, `argv is only for harness command, not for ${harness.name}: use args`)]
  }
  return []
}

function conflict(path: readonly string[], message: string): Finding {
  return { severity: 'error', code: 'E_CONFIG_CONFLICT', path, message }
}
