/* The functions that tests call, exported beside GetPjrtApi. README.md tells them to users. */
#ifndef TINY_FAULTS_H_
#define TINY_FAULTS_H_

#include <stdbool.h>
#include <stdint.h>

#define TINY_CONTROL __attribute__((visibility("default")))

/* Shapes the table that GetPjrtApi returns; call it before that. 0, or -1 where the text has an unknown word. */
TINY_CONTROL int tiny_plugin_configure(const char *settings);

/* From now on the function returns the error, after letting `skip` calls pass, for `count` calls (negative: for ever).
 * Code 0 takes the fault away. A *_Destroy frees its object first. 0, or -1 where there is no such function. */
TINY_CONTROL int tiny_plugin_set_fault(const char *function, int code, const char *message, int64_t skip, int64_t count);
/* The same for events that the function makes: they end with the error, when the work is done. */
TINY_CONTROL int tiny_plugin_set_event_fault(const char *function, int code, const char *message, int64_t skip,
                                             int64_t count);
/* A payload for the errors of all faults; an empty key means none. */
TINY_CONTROL void tiny_plugin_set_fault_payload(const char *key, const char *value);
/* Takes all faults away, and lets held work go on. */
TINY_CONTROL void tiny_plugin_clear_faults(void);
/* While held, no queue takes up new work: events stay pending. */
TINY_CONTROL void tiny_plugin_hold(bool on);
/* When strict, an argument struct whose struct_size is not exactly ours is refused and counted as a violation. */
TINY_CONTROL void tiny_plugin_set_strict(bool on);

/* Objects alive, and objects ever made, of a kind; -1 where there is no such kind. */
TINY_CONTROL int64_t tiny_plugin_live(const char *kind);
TINY_CONTROL int64_t tiny_plugin_made(const char *kind);
TINY_CONTROL const char *tiny_plugin_live_kind(int index); /* null behind the last */
/* Rules of the ABI that the caller broke. */
TINY_CONTROL int64_t tiny_plugin_violations(void);
TINY_CONTROL const char *tiny_plugin_last_violation(void);
/* Counting starts anew with each call of the first. */
TINY_CONTROL void tiny_plugin_count_calls(bool on);
TINY_CONTROL int64_t tiny_plugin_calls(const char *function);

void fault_set_legacy_errors(bool on);

#endif /* TINY_FAULTS_H_ */
