/* SPDX-License-Identifier: BSD-3-Clause */
#include "live_page.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tools/report/report.h"
#include "tools/support/alloc_count.h"
#include "tools/support/progress.h"
#include "tools/support/say.h"

enum { CALLERS = 16, REQUEST = 4096, GIVEN_MS = 2000 /* limit of a request and of its answer */ };

typedef struct {
    int fd; /* -1: the entry is free */
    double until;
    size_t n;
    char text[REQUEST];
} caller;

struct live_page {
    int kept, listener, stop; /* stop: an eventfd */
    char name[64], url[48], host[2][32];
    pthread_t thread;
    caller callers[CALLERS];
    char *report; /* the last report, or null */
    size_t report_bytes;
    double made, took; /* time at which the report was made, and its duration */
};

/* ---- the report -------------------------------------------------------------------------------------- */
static tess_status read_report(const live_page *p, char **out, size_t *bytes) {
    char path[32];
    report_run run;
    snprintf(path, sizeof path, "/proc/self/fd/%d", p->kept); /* a new open has an offset of its own */
    FILE *in = fopen(path, "re"), *to = open_memstream(out, bytes);
    tess_status status = in && to ? TESS_OK : tess_fail(TESS_E_SYSTEM, "%s: %s", path, strerror(errno));
    if (status == TESS_OK) {
        status = report_read(in, p->name, &run);
        if (status == TESS_OK)
            status = report_put(&run, 1, REPORT_HTML, to);
        report_run_free(&run);
    }
    if (in)
        fclose(in);
    if (to && fclose(to) != 0 && status == TESS_OK)
        status = tess_fail(TESS_E_NOMEM, "no memory for a page");
    return status;
}

/* A long run's report takes long to make, so the thread rests nine times as long as it works. */
static void refresh(live_page *p) {
    double now = tool_seconds();
    char *made = NULL;
    size_t bytes = 0;
    if (p->made && now - p->made < (p->took > 0.1 ? 10 * p->took : 1))
        return;
    tess_status status = read_report(p, &made, &bytes);
    p->made = tool_seconds();
    p->took = p->made - now;
    if (status == TESS_OK) {
        free(p->report);
        p->report = made;
        p->report_bytes = bytes;
        return;
    }
    free(made);
    if (!p->report)
        p->made = 0; /* the run had written nothing yet */
}

/* ---- answers ------------------------------------------------------------------------------------------- */
/* The report is a document within this one, so it stays readable after the run has ended. */
static const char shell[] =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>tessera train</title><style>\n"
    ":root{color-scheme:light dark}html,body{margin:0;height:100%}body{display:flex;flex-direction:column}\n"
    "p{margin:0;padding:.4em 1em;font:14px sans-serif}iframe{flex:1;border:0;width:100%}</style></head>\n"
    "<body><p id=\"state\" role=\"status\">…</p><iframe id=\"page\" title=\"report of the run\" "
    "sandbox=\"allow-same-origin\"></iframe>\n<script>\n"
    "const state = document.getElementById('state'), page = document.getElementById('page');\n"
    "let shown = '';\n"
    "async function look() {\n"
    "  try {\n"
    "    const answer = await fetch('report', { cache: 'no-store' }), text = await answer.text();\n"
    "    if (answer.ok && text !== shown) {\n"
    "      const y = page.contentDocument.documentElement.scrollTop;\n"
    "      page.onload = () => { page.contentDocument.documentElement.scrollTop = y; };\n"
    "      page.srcdoc = shown = text;\n"
    "    }\n"
    "    state.textContent = answer.ok ? 'Training; as of ' + new Date().toLocaleTimeString() : text;\n"
    "  } catch {\n"
    "    state.textContent = 'The run has ended, or cannot be reached. This is its last report.';\n"
    "  }\n"
    "  setTimeout(look, 2000);\n"
    "}\n"
    "look();\n</script></body></html>\n";

/* Gives up after GIVEN_MS or at the run's end, so that a caller who reads nothing delays nobody. */
static void send_all(const live_page *p, int fd, const char *data, size_t bytes) {
    double until = tool_seconds() + GIVEN_MS / 1000.0;
    while (bytes) {
        ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            data += sent;
            bytes -= (size_t)sent;
            continue;
        }
        int left = (int)((until - tool_seconds()) * 1000);
        struct pollfd fds[] = { { fd, POLLOUT, 0 }, { p->stop, POLLIN, 0 } };
        if ((sent < 0 && errno != EAGAIN) || left <= 0 || poll(fds, 2, left) <= 0 || fds[1].revents)
            return;
    }
}

static void answer(const live_page *p, int fd, const char *status, const char *type, const char *body, size_t bytes) {
    char head[512];
    int n = snprintf(head, sizeof head,
                     "HTTP/1.1 %s\r\nContent-Type: %s; charset=utf-8\r\nContent-Length: %zu\r\nConnection: close\r\n"
                     "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nAllow: GET\r\n"
                     "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src "
                     "'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'\r\n\r\n",
                     status, type, bytes);
    send_all(p, fd, head, (size_t)n);
    send_all(p, fd, body, bytes);
}

static void answer_plainly(const live_page *p, int fd, const char *status, const char *line) {
    answer(p, fd, status, "text/plain", line, strlen(line));
}

/* A page of another site may reach this server by a name that resolves to it (DNS rebinding). Its Host header then
 * differs. */
static int host_is_ours(const live_page *p, const char *request) {
    const char *at = strcasestr(request, "\r\nhost:");
    size_t n;
    if (!at)
        return 0;
    at += sizeof "\r\nhost:" - 1;
    at += strspn(at, " \t");
    n = strcspn(at, " \t\r\n");
    for (int i = 0; i < 2; i++)
        if (strlen(p->host[i]) == n && strncasecmp(at, p->host[i], n) == 0)
            return 1;
    return 0;
}

static void serve(live_page *p, const caller *c) {
    char path[64] = "", version[16] = "";
    int end = 0, got = sscanf(c->text, "GET %63s %15s%n", path, version, &end);
    if (strncmp(c->text, "GET ", 4) != 0)
        answer_plainly(p, c->fd, "405 Method Not Allowed", "This page is read-only: GET alone.\n");
    else if (got != 2 || strncmp(version, "HTTP/1.", 7) != 0 || strncmp(c->text + end, "\r\n", 2) != 0)
        answer_plainly(p, c->fd, "400 Bad Request", "This is no request.\n");
    else if (!host_is_ours(p, c->text))
        answer_plainly(p, c->fd, "403 Forbidden", "This page is for http://127.0.0.1 alone.\n");
    else if (strcmp(path, "/") == 0)
        answer(p, c->fd, "200 OK", "text/html", shell, sizeof shell - 1);
    else if (strcmp(path, "/report") != 0)
        answer_plainly(p, c->fd, "404 Not Found", "There are / and /report.\n");
    else {
        refresh(p);
        if (p->report)
            answer(p, c->fd, "200 OK", "text/html", p->report, p->report_bytes);
        else
            answer_plainly(p, c->fd, "503 Service Unavailable",
                           "Nothing is known yet: the first steps are under way.\n");
    }
}

/* ---- callers ------------------------------------------------------------------------------------------- */
static void hang_up(caller *c) {
    close(c->fd);
    c->fd = -1;
}

static void take_caller(live_page *p) {
    int fd = accept4(p->listener, NULL, NULL, SOCK_CLOEXEC);
    for (int i = 0; fd >= 0 && i < CALLERS; i++)
        if (p->callers[i].fd < 0) {
            p->callers[i] = (caller){ .fd = fd, .until = tool_seconds() + GIVEN_MS / 1000.0 };
            return;
        }
    if (fd >= 0)
        close(fd);
}

static void hear(live_page *p, caller *c) {
    ssize_t n = recv(c->fd, c->text + c->n, REQUEST - 1 - c->n, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    c->n += n > 0 ? (size_t)n : 0;
    c->text[c->n] = '\0';
    int whole = memmem(c->text, c->n, "\r\n\r\n", 4) != NULL;
    if (n > 0 && !whole && c->n < REQUEST - 1)
        return;
    if (whole)
        serve(p, c);
    else if (c->n == REQUEST - 1)
        answer_plainly(p, c->fd, "431 Request Header Fields Too Large", "This request is too long.\n");
    hang_up(c);
}

/* Waits for callers. Returns 0 if the thread must stop. */
static int wait_for_callers(live_page *p, struct pollfd fds[CALLERS + 2]) {
    int waiting = 0;
    for (int i = 0; i < CALLERS; i++) {
        caller *c = &p->callers[i];
        if (c->fd >= 0 && tool_seconds() > c->until)
            hang_up(c);
        fds[i] = (struct pollfd){ c->fd, POLLIN, 0 };
        waiting += c->fd >= 0;
    }
    fds[CALLERS] = (struct pollfd){ waiting < CALLERS ? p->listener : -1, POLLIN, 0 };
    fds[CALLERS + 1] = (struct pollfd){ p->stop, POLLIN, 0 };
    int n = poll(fds, CALLERS + 2, waiting ? 200 : -1);
    return (n >= 0 || errno == EINTR) && !fds[CALLERS + 1].revents;
}

static void *run(void *arg) {
    live_page *p = arg;
    struct pollfd fds[CALLERS + 2];
    tool_alloc_leave_out_thread();
    (void)setpriority(PRIO_PROCESS, 0, 10); /* on Linux this lowers this thread alone, because the step comes first */
    while (wait_for_callers(p, fds)) {
        for (int i = 0; i < CALLERS; i++)
            if (fds[i].revents && p->callers[i].fd >= 0)
                hear(p, &p->callers[i]);
        if (fds[CALLERS].revents)
            take_caller(p);
    }
    return NULL;
}

/* ---- opening ------------------------------------------------------------------------------------------- */
static tess_status read_port(const char *text, uint16_t *out) {
    char *end;
    unsigned long port = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || (port < 1024 && port != 1) || port > 65535) /* 1: no port is given */
        return tess_fail(TESS_E_INVALID, "--watch=%s: expected a port, 1024 to 65535; without one a free one is taken",
                         text);
    *out = port == 1 ? 0 : (uint16_t)port;
    return TESS_OK;
}

static tess_status listen_at(live_page *p, uint16_t port) {
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port) };
    socklen_t size = sizeof at;
    int on = 1;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    p->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    p->stop = eventfd(0, EFD_CLOEXEC);
    if (p->listener < 0 || p->stop < 0)
        return tess_fail(TESS_E_INVALID, "--watch: no socket: %s", strerror(errno));
    setsockopt(p->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(p->listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(p->listener, CALLERS) != 0)
        return tess_fail(TESS_E_INVALID, "--watch=%d: %s; without a number a free port is taken", port,
                         strerror(errno));
    getsockname(p->listener, (struct sockaddr *)&at, &size);
    port = ntohs(at.sin_port);
    snprintf(p->url, sizeof p->url, "http://127.0.0.1:%d/", port);
    snprintf(p->host[0], sizeof p->host[0], "127.0.0.1:%d", port);
    snprintf(p->host[1], sizeof p->host[1], "localhost:%d", port);
    return TESS_OK;
}

static tess_status start(live_page *p) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the thread inherits a full mask, because signals are for the run */
    int failed = pthread_create(&p->thread, NULL, run, p);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed ? tess_fail(TESS_E_INVALID, "--watch: no thread: %s", strerror(failed)) : TESS_OK;
}

static void drop(live_page *p) {
    for (int i = 0; i < CALLERS; i++)
        if (p->callers[i].fd >= 0)
            hang_up(&p->callers[i]);
    if (p->listener >= 0)
        close(p->listener);
    if (p->stop >= 0)
        close(p->stop);
    free(p->report);
    free(p);
}

tess_status live_page_open(int kept, const char *name, const char *port, live_page **out) {
    uint16_t number = 0;
    TRY(read_port(port, &number));
    live_page *p = calloc(1, sizeof *p);
    if (!p)
        return tess_fail(TESS_E_NOMEM, "no memory for a page");
    p->kept = kept;
    p->listener = p->stop = -1;
    for (int i = 0; i < CALLERS; i++)
        p->callers[i].fd = -1;
    snprintf(p->name, sizeof p->name, "%s", name);
    tess_status status = listen_at(p, number);
    if (status == TESS_OK)
        status = start(p);
    if (status != TESS_OK)
        drop(p);
    else
        *out = p;
    return status;
}

const char *live_page_url(const live_page *p) {
    return p->url;
}

void live_page_close(live_page *p) {
    const uint64_t one = 1;
    if (!p)
        return;
    if (write(p->stop, &one, sizeof one) == sizeof one)
        pthread_join(p->thread, NULL);
    drop(p);
}
