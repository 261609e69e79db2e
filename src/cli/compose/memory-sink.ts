import type { CallId, ExecutionId } from '../../core/ids.ts'
import type { RecordSink } from '../../ports/forwarding.ts'
import type { CallRecord } from '../../trajectory/node.ts'

/** Keeps records in memory: for probes that leave no trace in a run. */
export class MemorySink implements RecordSink {
  readonly #records: CallRecord[] = []

  appendCall(record: CallRecord): Promise<void> {
    this.#records.push(record)
    return Promise.resolve()
  }

  markOrphan(_executionId: ExecutionId, _callId: CallId): Promise<void> {
    return Promise.resolve()
  }

  records(executionId: ExecutionId): readonly CallRecord[] {
    return this.#records.filter((record) => record.executionId === executionId)
  }
}
