/* SPDX-License-Identifier: BSD-3-Clause */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "control_state.h"
#include "base/status.h"

static tess_status fail_aborted(const tess__control *control) {
    return tess__fail(TESS_E_ABORTED, "%s", control->cause_text);
}

static int64_t deadline_of(int64_t timeout_ns) {
    int64_t now_ns = tess__now_ns();
    return timeout_ns < 0 || timeout_ns > INT64_MAX - now_ns ? INT64_MAX : now_ns + timeout_ns;
}

static tess_status check_key(const char *key) {
    size_t length = strlen(key);
    if (length == 0 || length > TESS__KV_KEY_MAX)
        return tess__fail(TESS_E_INVALID, "a key of %zu bytes, expected 1 to %d", length, TESS__KV_KEY_MAX);
    return TESS_OK;
}

static void unlink_request(tess__control *control, const tess__control_request *request) {
    tess__control_request **at = &control->requests;
    while (*at != request)
        at = &(*at)->next;
    *at = request->next;
}

/* Sends a request and waits for its answer. Fails when a rank is lost or the time is over instead. `lock` is held. */
static tess_status transact_with(tess__control *control, tess__control_request *request, uint32_t type, int32_t arg,
                                 const char *key, const void *value, uint64_t bytes, int64_t timeout_ns) {
    int64_t deadline_ns = deadline_of(timeout_ns);
    if (control->has_cause)
        return fail_aborted(control);
    if (!control->connected || control->goodbye_sent)
        return tess__fail(TESS_E_INVALID, "'%s': the control plane is closed", key);
    request->id = ++control->next_id ? control->next_id : ++control->next_id;
    tess__message message = { .type = type,
                              .id = request->id,
                              .arg = arg,
                              .key = key,
                              .key_bytes = (uint32_t)strlen(key) + 1,
                              .value = value,
                              .value_bytes = (uint32_t)bytes };
    if (tess__outbox_copy(&control->out, &message) != 0)
        return tess__fail(TESS_E_NOMEM, "no memory to send '%s'", key);
    request->next = control->requests;
    control->requests = request;
    tess__control_wake(control);
    int late = 0;
    while (!request->done && !control->has_cause && !late)
        late = tess__control_wait(control, deadline_ns);
    unlink_request(control, request);
    if (request->done)
        return TESS_OK;
    if (control->has_cause)
        return fail_aborted(control);
    tess__outbox_push(&control->out, TESS__WIRE_CANCEL, request->id, 0, NULL);
    return tess__fail(TESS_E_TIMEOUT, "key '%s' was not set within %.3g s", key, (double)timeout_ns / 1e9);
}

static tess_status transact(tess__control *control, tess__control_request *request, uint32_t type, const char *key,
                            const void *value, uint64_t bytes, int64_t timeout_ns) {
    return transact_with(control, request, type, 0, key, value, bytes, timeout_ns);
}

void tess__control_answer(tess__control *control, const tess__message *in) {
    tess__control_request *request = control->requests;
    while (request && request->id != in->id)
        request = request->next;
    if (!request)
        return; /* its caller has given up */
    request->done = 1;
    request->bytes = in->value_bytes;
    if (in->type == TESS__WIRE_ERROR) {
        request->status = in->arg < 0 ? in->arg : TESS_E_INTERNAL;
        snprintf(request->why, sizeof request->why, "%.*s", (int)in->value_bytes, (const char *)in->value);
    } else if (in->value_bytes && in->value_bytes <= request->capacity)
        memcpy(request->out, in->value, in->value_bytes);
}

/* ---- one rank without a server ------------------------------------------------------------------ */

static tess_status set_alone(tess__control *control, const char *key, const void *value, uint64_t bytes) {
    const char *why;
    tess_status status = tess__kv_store_set(control->store, key, value, bytes, &why);
    if (status != TESS_OK)
        return tess__fail(status, "key '%s': %s", key, why);
    pthread_cond_broadcast(&control->changed);
    return TESS_OK;
}

static tess_status get_alone(tess__control *control, const char *key, tess__control_request *request,
                             int64_t timeout_ns) {
    int64_t deadline_ns = deadline_of(timeout_ns);
    tess__blob *value;
    while (!(value = tess__kv_store_get(control->store, key))) {
        if (control->has_cause)
            return fail_aborted(control);
        if (tess__control_wait(control, deadline_ns))
            return tess__fail(TESS_E_TIMEOUT, "key '%s' was not set within %.3g s", key, (double)timeout_ns / 1e9);
    }
    request->bytes = value->bytes;
    if (value->bytes && value->bytes <= request->capacity)
        memcpy(request->out, value->data, value->bytes);
    return TESS_OK;
}

/* ---- set, drop, get and exchange ---------------------------------------------------------------- */

tess_status tess__control_set(tess__control *control, const char *key, const void *value, uint64_t bytes) {
    TRY(check_key(key));
    if (bytes > TESS__KV_VALUE_MAX)
        return tess__fail(TESS_E_INVALID, "key '%s': a value of %llu bytes, expected at most %d", key,
                          (unsigned long long)bytes, TESS__KV_VALUE_MAX);
    tess_status status = TESS_OK;
    tess__control_request request = { .next = NULL };
    pthread_mutex_lock(&control->lock);
    if (control->store)
        status = set_alone(control, key, value, bytes);
    else
        status = transact(control, &request, TESS__WIRE_SET, key, value, bytes, -1);
    pthread_mutex_unlock(&control->lock);
    if (status == TESS_OK && request.status != TESS_OK)
        return tess__fail(request.status, "key '%s': %s", key, request.why);
    return status;
}

tess_status tess__control_drop(tess__control *control, const char *key) {
    TRY(check_key(key));
    tess_status status = TESS_OK;
    tess__control_request request = { .next = NULL };
    pthread_mutex_lock(&control->lock);
    if (control->store)
        tess__kv_store_drop(control->store, key);
    else
        status = transact(control, &request, TESS__WIRE_DROP, key, NULL, 0, -1);
    pthread_mutex_unlock(&control->lock);
    return status;
}

tess_status tess__control_get(tess__control *control, const char *key, void *value, uint64_t *bytes,
                              int64_t timeout_ns) {
    TRY(check_key(key));
    tess_status status = TESS_OK;
    tess__control_request request = { .out = value, .capacity = *bytes };
    pthread_mutex_lock(&control->lock);
    if (control->store)
        status = get_alone(control, key, &request, timeout_ns);
    else
        status = transact(control, &request, TESS__WIRE_GET, key, NULL, 0, timeout_ns);
    pthread_mutex_unlock(&control->lock);
    if (status == TESS_OK && request.status != TESS_OK)
        return tess__fail(request.status, "key '%s': %s", key, request.why);
    if (status == TESS_OK && request.bytes > request.capacity)
        return tess__fail(TESS_E_INVALID, "key '%s': its value has %llu bytes, there is room for %llu", key,
                          (unsigned long long)request.bytes, (unsigned long long)request.capacity);
    if (status == TESS_OK)
        *bytes = request.bytes;
    return status;
}

/* Exchanges among `n` ranks; the message of `value_bytes` begins with their numbers unless n_listed is 0. */
static tess_status exchange(tess__control *control, const char *key, int32_t n_listed, const void *value,
                            uint64_t value_bytes, uint64_t total, void *out) {
    tess__control_request request = { .out = out, .capacity = total };
    pthread_mutex_lock(&control->lock);
    tess_status status = transact_with(control, &request, TESS__WIRE_EXCHANGE, n_listed, key, value, value_bytes, -1);
    pthread_mutex_unlock(&control->lock);
    if (status == TESS_OK && request.status != TESS_OK)
        return tess__fail(request.status, "%s", request.why);
    if (status == TESS_OK && request.bytes != total)
        return tess__fail(TESS_E_INTERNAL, "exchange '%s': %llu bytes came back, expected %llu", key,
                          (unsigned long long)request.bytes, (unsigned long long)total);
    return status;
}

static tess_status check_exchange(const char *key, uint64_t bytes) {
    TRY(check_key(key));
    if (bytes > TESS__KV_VALUE_MAX)
        return tess__fail(TESS_E_INVALID, "exchange '%s': %llu bytes, expected at most %d", key,
                          (unsigned long long)bytes, TESS__KV_VALUE_MAX);
    return TESS_OK;
}

tess_status tess__control_exchange(tess__control *control, const char *key, const void *mine, uint64_t bytes,
                                   void *out) {
    TRY(check_exchange(key, bytes));
    if (!control->store)
        return exchange(control, key, 0, mine, bytes, bytes * (uint64_t)control->world.nranks, out);
    if (bytes)
        memmove(out, mine, bytes);
    return TESS_OK;
}

tess_status tess__control_exchange_among(tess__control *control, const int32_t *members, int32_t n, const char *key,
                                         const void *mine, uint64_t bytes, void *out) {
    TRY(check_exchange(key, bytes));
    if (n < 1 || n > TESS__KV_MEMBERS_MAX)
        return tess__fail(TESS_E_INVALID, "exchange '%s': %d ranks, expected 1 to %d", key, (int)n,
                          TESS__KV_MEMBERS_MAX);
    size_t list_bytes = 4 * (size_t)n;
    unsigned char few[512], *value = list_bytes + bytes <= sizeof few ? few : malloc(list_bytes + bytes);
    if (!value)
        return tess__fail(TESS_E_NOMEM, "no memory for exchange '%s'", key);
    for (int32_t i = 0; i < n; i++)
        tess__wire_put_u32(value + 4 * i, (uint32_t)members[i]);
    if (bytes)
        memcpy(value + list_bytes, mine, bytes);
    tess_status status = exchange(control, key, n, value, list_bytes + bytes, bytes * (uint64_t)n, out);
    if (value != few)
        free(value);
    return status;
}
