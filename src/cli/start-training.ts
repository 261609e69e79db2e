import { InvariantError } from '../core/errors.ts'
import type { StartTraining } from './train.ts'

/** Composes a run from its config and drives it to its end. */
export const startTraining: StartTraining = () => {
  throw new InvariantError('training is not wired to the command line yet')
}
