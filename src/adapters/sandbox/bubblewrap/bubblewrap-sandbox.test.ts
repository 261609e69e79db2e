import { test } from 'vitest'
import { sandboxContract } from '../../../ports/sandbox.contract.ts'
import { BubblewrapSandbox, probeBubblewrap } from './bubblewrap-sandbox.ts'

const probe = await probeBubblewrap()

if (probe.works) {
  sandboxContract('bubblewrap', {
    make: (baseFolder) => new BubblewrapSandbox({ baseFolder, graceMs: 500 }),
    module: 'adapters/sandbox/bubblewrap/bubblewrap-sandbox.ts',
    className: 'BubblewrapSandbox',
  })
} else {
  test.skip(`bubblewrap is not tested: ${probe.reason}`)
}
