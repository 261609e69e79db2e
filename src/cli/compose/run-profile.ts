/** @file The harness profile of a run. */
import { loadProfile } from '../../config/profile.ts'
import type { RunConfig } from '../../config/resolve.ts'
import type { HarnessProfile } from '../../trajectory/profile.ts'
import { extendedProfile, harnessProfile } from '../../trajectory/profiles.ts'

/**
 * The user's own profile, which is read and checked here, else the shipped one of the harness.
 * @throws GyreError E_CONFIG_* when the file cannot be used.
 */
export function runProfile({ harness }: RunConfig): HarnessProfile {
  const base = harness.name === 'command' ? 'generic' : harness.name
  const { profile } = harness
  return profile === undefined ? harnessProfile(base) : extendedProfile(loadProfile(profile, process.cwd()), base)
}
