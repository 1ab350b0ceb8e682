/* SPDX-License-Identifier: BSD-3-Clause */
/* A page that shows the report of a run while it trains: HTTP on 127.0.0.1, read-only. A thread of its own reads the
 * JSON that the run has written so far; the run never waits for it, and shares nothing with it but that file. */
#ifndef TOOL_LIVE_PAGE_H
#define TOOL_LIVE_PAGE_H
#include <tessera/tessera.h>

typedef struct live_page live_page;

/** Listens and starts the thread. `kept`: an open file of JSON lines, which is written without a buffer and stays open
 * until live_page_close. `port` "1": a free one. TESS_E_INVALID: it is no port, or it is taken. */
tess_status live_page_open(int kept, const char *name, const char *port, live_page **out);
/** "http://127.0.0.1:PORT/" */
const char *live_page_url(const live_page *);
void live_page_close(live_page *); /* null is fine */
#endif
