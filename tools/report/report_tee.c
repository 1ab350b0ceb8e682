/* SPDX-License-Identifier: BSD-3-Clause */
/* JSON on its way to where --json says, kept aside for the page of --report. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "report.h"
#include <tessera/tessera.h>

static ssize_t tee_write(void *cookie, const char *data, size_t bytes) {
    report_tee *t = cookie;
    size_t kept = fwrite(data, 1, bytes, t->kept), shown = t->shown ? fwrite(data, 1, bytes, t->shown) : bytes;
    int flushed = !t->shown || fflush(t->shown) == 0;
    return kept == bytes && shown == bytes && flushed ? (ssize_t)bytes : 0;
}

tess_status report_tee_open(report_tee *t, FILE *shown, const char *page) {
    const cookie_io_functions_t functions = { .write = tee_write };
    report_file file;
    tess_status status = page ? report_file_open(&file, page) : TESS_OK; /* rather now than after hours of training */
    if (status != TESS_OK)
        return status;
    if (page)
        report_file_discard(&file);
    *t = (report_tee){ .kept = tmpfile(), .shown = shown, .page = page };
    t->stream = t->kept ? fopencookie(t, "w", functions) : NULL;
    if (t->stream)
        return TESS_OK;
    status = tess_fail(TESS_E_DATA, "%s%s: no temporary file: %s", page ? "--report=" : "--watch", page ? page : "",
                       strerror(errno));
    report_tee_close(t);
    return status;
}

tess_status report_tee_write(report_tee *t, const char *name) {
    report_run run;
    if (fflush(t->stream) != 0 || fflush(t->kept) != 0)
        return tess_fail(TESS_E_SYSTEM, "--report=%s: not everything could be kept aside: %s", t->page,
                         strerror(errno));
    rewind(t->kept);
    tess_status status = report_read(t->kept, name, &run);
    if (status == TESS_OK)
        status = report_write(&run, 1, REPORT_HTML, t->page);
    report_run_free(&run);
    return status;
}

void report_tee_close(report_tee *t) {
    if (t->stream)
        fclose(t->stream);
    if (t->kept)
        fclose(t->kept);
    *t = (report_tee){ .kept = NULL };
}
