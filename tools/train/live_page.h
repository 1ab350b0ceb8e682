/* SPDX-License-Identifier: BSD-3-Clause */
/* Serves a page with the run's report while it trains, over HTTP on 127.0.0.1 and read-only. A thread reads the JSON
 * that the run has written. The run never waits for it and shares only that file. */
#ifndef TOOL_LIVE_PAGE_H
#define TOOL_LIVE_PAGE_H
#include <tessera/tessera.h>

typedef struct live_page live_page;

/** Listens and starts the thread. `kept` is an open file of JSON lines, written without a buffer. It must stay open
 * until live_page_close. `port` "1" takes a free port. TESS_E_INVALID says that the port is invalid or taken. */
tess_status live_page_open(int kept, const char *name, const char *port, live_page **out);
/** Returns "http://127.0.0.1:PORT/". */
const char *live_page_url(const live_page *);
void live_page_close(live_page *); /* null is fine */
#endif
