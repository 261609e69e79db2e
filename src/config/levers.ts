/**
 * @file What each policy makes of the levers that a run file does not name, and what it cannot do. Pure.
 *
 * This is the one place of their defaults. `elastic` has those that were measured to keep the learning curve.
 */
import type { Finding } from './finding.ts'
import type { RunFile } from './schema.ts'

type Elastic = RunFile['elastic']
export type Policy = Elastic['policy']
type LeverName =
  | 'carryOver'
  | 'carryOverMin'
  | 'carryOverMax'
  | 'stragglerQuorum'
  | 'stragglerGrace'
  | 'overCommit'
  | 'demandAware'
  | 'placement'
  | 'kvHandover'
  | 'earlyForward'
/** Every lever with its value; units as in the schema. */
export type Levers = { readonly [Name in LeverName]: NonNullable<Elastic[Name]> }
/** A run file whose levers are all named. */
export type FilledRunFile = Omit<RunFile, 'elastic'> & { elastic: Omit<Elastic, LeverName> & Levers }

const PUBLISHED: Levers = {
  carryOver: 0.5,
  carryOverMin: 0.5,
  carryOverMax: 0.5,
  stragglerQuorum: 1,
  stragglerGrace: 0.5,
  overCommit: 1,
  demandAware: false,
  placement: 'latest',
  kvHandover: true,
  earlyForward: false,
}
const POLICY_LEVERS: Readonly<Record<Policy, Levers>> = {
  elastic: { ...PUBLISHED, demandAware: true, placement: 'balanced', kvHandover: false },
  qwengyre: PUBLISHED,
  colocate: {
    ...PUBLISHED,
    carryOver: 0,
    carryOverMin: 0,
    carryOverMax: 0,
    placement: 'balanced',
    kvHandover: false,
  },
  async: { ...PUBLISHED, placement: 'balanced', kvHandover: false },
}

/** The levers as they are used: what is named, else what the policy has. */
export function leversOf({ elastic, training }: Pick<RunFile, 'elastic' | 'training'>): Levers {
  const preset = POLICY_LEVERS[elastic.policy]
  return {
    ...carryOverOf(elastic, training.stepsPerBurst),
    stragglerQuorum: elastic.stragglerQuorum ?? preset.stragglerQuorum,
    stragglerGrace: elastic.stragglerGrace ?? preset.stragglerGrace,
    overCommit: elastic.overCommit ?? preset.overCommit,
    demandAware: elastic.demandAware ?? preset.demandAware,
    placement: elastic.placement ?? preset.placement,
    kvHandover: elastic.kvHandover ?? preset.kvHandover,
    earlyForward: elastic.earlyForward ?? preset.earlyForward,
  }
}

export function withLevers(file: RunFile): FilledRunFile {
  return { ...file, elastic: { ...file.elastic, ...leversOf(file) } }
}

/** The largest phi whose hard bound of staleness, mu - 1 + mu ceil(phi / mu), keeps to `maxStaleness`. [steps] */
function carryOverWithin(maxStaleness: number | undefined, stepsPerBurst: number): number {
  if (maxStaleness === undefined) return Number.POSITIVE_INFINITY
  return Math.max(0, stepsPerBurst * Math.floor((maxStaleness + 1 - stepsPerBurst) / stepsPerBurst))
}

/** A phi that is given alone is fixed; a bound that is given without it moves it. */
function carryOverOf(
  elastic: Elastic,
  stepsPerBurst: number,
): Pick<Levers, 'carryOver' | 'carryOverMin' | 'carryOverMax'> {
  const preset = POLICY_LEVERS[elastic.policy]
  if (elastic.policy === 'colocate') return { carryOver: 0, carryOverMin: 0, carryOverMax: 0 }
  const bound = carryOverWithin(elastic.maxStaleness, stepsPerBurst)
  const given = elastic.carryOver
  const max = Math.min(bound, elastic.carryOverMax ?? given ?? Math.max(preset.carryOverMax, elastic.carryOverMin ?? 0))
  const min = Math.min(max, elastic.carryOverMin ?? given ?? preset.carryOverMin)
  return {
    carryOver: Math.min(max, Math.max(min, given ?? preset.carryOver)),
    carryOverMin: min,
    carryOverMax: max,
  }
}

interface Forbidden {
  readonly policy: Policy
  readonly key: keyof Elastic
  readonly isAsked: (elastic: Elastic, stepsPerBurst: number) => boolean
  readonly why: string
}

const PUBLISHED_ONLY = 'qwengyre is the published behaviour'
/** What a policy cannot do although a run file names it. */
const FORBIDDEN: readonly Forbidden[] = [
  ...(['carryOverMin', 'carryOverMax'] as const).map((key) => ({
    policy: 'colocate' as const,
    key,
    isAsked: (elastic: Elastic) => (elastic[key] ?? 0) > 0,
    why: `colocate waits for every execution: take ${key} out, or another policy`,
  })),
  {
    policy: 'colocate',
    key: 'demandAware',
    isAsked: ({ demandAware }) => demandAware === true,
    why: 'colocate moves every cell at once: take demandAware out, or another policy',
  },
  {
    policy: 'colocate',
    key: 'kvHandover',
    isAsked: ({ kvHandover }) => kvHandover === true,
    why: 'colocate moves cells when nothing runs on them: take kvHandover out, or another policy',
  },
  {
    policy: 'colocate',
    key: 'earlyForward',
    isAsked: ({ earlyForward }) => earlyForward === true,
    why: 'colocate trains when every group is complete: take earlyForward out, or another policy',
  },
  {
    policy: 'qwengyre',
    key: 'earlyForward',
    isAsked: ({ earlyForward }) => earlyForward === true,
    why: `${PUBLISHED_ONLY}, which trains complete groups: take policy elastic`,
  },
  {
    policy: 'async',
    key: 'kvHandover',
    isAsked: ({ kvHandover }) => kvHandover === true,
    why: 'the cells of async do not change roles: take kvHandover out, or another policy',
  },
  {
    policy: 'qwengyre',
    key: 'stragglerQuorum',
    isAsked: ({ stragglerQuorum = 1 }) => stragglerQuorum < 1,
    why: `${PUBLISHED_ONLY}, which cuts no execution: take policy elastic`,
  },
  {
    policy: 'qwengyre',
    key: 'overCommit',
    isAsked: ({ overCommit = 1 }) => overCommit > 1,
    why: `${PUBLISHED_ONLY}, which does not over-commit: take policy elastic`,
  },
  {
    policy: 'qwengyre',
    key: 'demandAware',
    isAsked: ({ demandAware }) => demandAware === true,
    why: `${PUBLISHED_ONLY}, whose trigger is the water level alone: take policy elastic`,
  },
  {
    policy: 'qwengyre',
    key: 'carryOverMax',
    isAsked: (elastic, stepsPerBurst) => {
      const { carryOverMin, carryOverMax } = carryOverOf(elastic, stepsPerBurst)
      return carryOverMin < carryOverMax
    },
    why: `${PUBLISHED_ONLY}, whose phi is fixed: give carryOver alone, or take policy elastic`,
  },
]

/** Levers that are named and that the policy cannot follow, and ones that contradict each other. */
export function leverFindings({ elastic, training }: RunFile): readonly Finding[] {
  const { stepsPerBurst } = training
  const forbidden = FORBIDDEN.filter(
    ({ policy, isAsked }) => policy === elastic.policy && isAsked(elastic, stepsPerBurst),
  )
  const found = [...forbidden.map(({ key, why }) => conflict(key, why)), ...earlyFindings(elastic, training)]
  if (elastic.policy !== 'colocate') {
    return [...found, ...rangeFindings(elastic), ...stalenessFindings(elastic, stepsPerBurst)]
  }
  const { carryOver = 0 } = elastic
  if (carryOver === 0) return found
  const ignored = `colocate waits for every execution: carryOver ${carryOver} is taken as 0`
  return [...found, { ...conflict('carryOver', ignored), severity: 'warning' }]
}

/** What is computed before its advantage is known is scaled by it later: the entropy bonus would be, too. */
function earlyFindings({ earlyForward }: Elastic, { entropyWeight }: RunFile['training']): readonly Finding[] {
  if (earlyForward !== true || entropyWeight === 0) return []
  const mend = 'take one of the two out'
  return [conflict('earlyForward', `training.entropyWeight ${entropyWeight} is not linear in the advantage: ${mend}`)]
}

function rangeFindings({ carryOver, carryOverMin, carryOverMax }: Elastic): readonly Finding[] {
  const most = carryOverMax ?? carryOver
  if (carryOverMin !== undefined && most !== undefined && carryOverMin > most) {
    const name = carryOverMax === undefined ? 'carryOver' : 'carryOverMax'
    return [conflict('carryOverMin', `carryOverMin ${carryOverMin} is above ${name} ${most}`)]
  }
  if (carryOver === undefined) return []
  if (carryOverMax !== undefined && carryOver > carryOverMax) {
    return [conflict('carryOver', `carryOver ${carryOver} is above carryOverMax ${carryOverMax}`)]
  }
  if (carryOverMin !== undefined && carryOver < carryOverMin) {
    return [conflict('carryOver', `carryOver ${carryOver} is below carryOverMin ${carryOverMin}`)]
  }
  return []
}

function stalenessFindings(
  { carryOver, carryOverMin, maxStaleness }: Elastic,
  stepsPerBurst: number,
): readonly Finding[] {
  if (maxStaleness === undefined) return []
  const least = stepsPerBurst - 1
  if (maxStaleness < least) {
    const mend = 'raise maxStaleness, or lower training.stepsPerBurst'
    return [conflict('maxStaleness', `the steps of one burst alone make a staleness of ${least}: ${mend}`)]
  }
  const bound = carryOverWithin(maxStaleness, stepsPerBurst)
  const asked = carryOverMin ?? carryOver
  if (asked === undefined || asked <= bound) return []
  const key = carryOverMin === undefined ? 'carryOver' : 'carryOverMin'
  return [conflict(key, `${key} ${asked} allows more staleness than maxStaleness ${maxStaleness}: at most ${bound}`)]
}

function conflict(key: keyof Elastic, message: string): Finding {
  return { severity: 'error', code: 'E_CONFIG_CONFLICT', path: ['elastic', key], message }
}
