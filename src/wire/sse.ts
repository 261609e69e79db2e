/** One server-sent event. `data` is JSON text or a bare word; a line break in it would split the event. */
export function sseFrame(data: string, event?: string): string {
  return event === undefined ? `data: ${data}\n\n` : `event: ${event}\ndata: ${data}\n\n`
}
