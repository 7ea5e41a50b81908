/* A profiler of the smallest kind: NVTX loads this library when NVTX_INJECTION64_PATH names it, and it writes every
 * NVTX call that it receives as one line of JSON to the file named by FASTLOAD_NVTX_LOG.
 *
 * Any number of processes and threads may write to that file at once: it is opened for appending and each line is one
 * write(2), which Linux keeps whole on a local file. Several NVTX clients in one process (torch, nvtx, ...) each
 * initialize the library; they share one descriptor.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <nvtx3/nvToolsExt.h>

#define EXPORT __attribute__((visibility("default")))
#define LINE_BYTES 2048

static int log_fd = -1;
static pthread_once_t log_once = PTHREAD_ONCE_INIT;

static void open_log(void) {
  const char* path = getenv("FASTLOAD_NVTX_LOG");
  if (path != NULL) log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
}

/* A handle is the text that it stands for: handles outlive every range, so they are never freed. */
static const char* text_of(const void* handle) { return handle == NULL ? "" : (const char*)handle; }

typedef struct {
  char bytes[LINE_BYTES];
  size_t used;
} Line;

static void add(Line* line, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int wrote = vsnprintf(line->bytes + line->used, sizeof line->bytes - line->used, format, arguments);
  va_end(arguments);
  if (wrote > 0) line->used += (size_t)wrote;
  if (line->used >= sizeof line->bytes) line->used = sizeof line->bytes - 1;
}

static void add_string(Line* line, const char* key, const char* text) {
  add(line, ", \"%s\": \"", key);
  for (size_t i = 0; text[i] != '\0' && i < 256; i++) {
    const unsigned char c = (unsigned char)text[i];
    if (c == '"' || c == '\\') {
      add(line, "\\%c", c);
    } else if (c < 0x20) {
      add(line, "\\u%04x", c);
    } else {
      add(line, "%c", c);
    }
  }
  add(line, "\"");
}

static void begin(Line* line, const char* kind) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  line->used = 0;
  add(line, "{\"kind\": \"%s\", \"pid\": %ld, \"tid\": %ld, \"time_ns\": %lld", kind, (long)getpid(),
      (long)syscall(SYS_gettid), (long long)now.tv_sec * 1000000000LL + now.tv_nsec);
}

static void finish(Line* line) {
  add(line, "}");
  if (line->used > sizeof line->bytes - 2) return; /* it did not fit: no line rather than half a line */
  line->bytes[line->used++] = '\n';
  if (log_fd >= 0 && write(log_fd, line->bytes, line->used) < 0) perror("FASTLOAD_NVTX_LOG");
}

static void add_attributes(Line* line, const nvtxEventAttributes_t* attributes) {
  switch (attributes->messageType) {
    case NVTX_MESSAGE_TYPE_ASCII: add_string(line, "message", text_of(attributes->message.ascii)); break;
    case NVTX_MESSAGE_TYPE_REGISTERED: add_string(line, "message", text_of(attributes->message.registered)); break;
    default: add(line, ", \"message\": null");
  }
  switch (attributes->payloadType) {
    case NVTX_PAYLOAD_UNKNOWN: add(line, ", \"payload_type\": null, \"payload\": null"); break;
    case NVTX_PAYLOAD_TYPE_INT64:
      add(line, ", \"payload_type\": \"int64\", \"payload\": %lld", (long long)attributes->payload.llValue);
      break;
    case NVTX_PAYLOAD_TYPE_UNSIGNED_INT64:
      add(line, ", \"payload_type\": \"uint64\", \"payload\": %llu", (unsigned long long)attributes->payload.ullValue);
      break;
    case NVTX_PAYLOAD_TYPE_INT32:
      add(line, ", \"payload_type\": \"int32\", \"payload\": %ld", (long)attributes->payload.iValue);
      break;
    case NVTX_PAYLOAD_TYPE_UNSIGNED_INT32:
      add(line, ", \"payload_type\": \"uint32\", \"payload\": %lu", (unsigned long)attributes->payload.uiValue);
      break;
    case NVTX_PAYLOAD_TYPE_DOUBLE:
      add(line, ", \"payload_type\": \"double\", \"payload\": %.17g", attributes->payload.dValue);
      break;
    case NVTX_PAYLOAD_TYPE_FLOAT:
      add(line, ", \"payload_type\": \"float\", \"payload\": %.9g", (double)attributes->payload.fValue);
      break;
    default: add(line, ", \"payload_type\": \"other\", \"payload\": null");
  }
  if (attributes->colorType == NVTX_COLOR_ARGB) add(line, ", \"color\": %lu", (unsigned long)attributes->color);
}

static void log_event(const char* kind, const void* domain, const nvtxEventAttributes_t* attributes) {
  Line line;
  begin(&line, kind);
  add_string(&line, "domain", text_of(domain));
  if (attributes != NULL) add_attributes(&line, attributes);
  finish(&line);
}

static void log_text(const char* kind, const void* domain, const char* key, const char* text) {
  Line line;
  begin(&line, kind);
  add_string(&line, "domain", text_of(domain));
  add_string(&line, key, text_of(text));
  finish(&line);
}

/* Calls with a domain. */

static nvtxDomainHandle_t NVTX_API domain_create(const char* name) {
  char* handle = strdup(name);
  log_text("domain_create", handle, "message", "");
  return (nvtxDomainHandle_t)(void*)handle;
}

static nvtxStringHandle_t NVTX_API domain_register_string(nvtxDomainHandle_t domain, const char* text) {
  log_text("register_string", domain, "message", text);
  return (nvtxStringHandle_t)(void*)strdup(text);
}

static int NVTX_API domain_push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  log_event("push", domain, attributes);
  return NVTX_NO_PUSH_POP_TRACKING;
}

static int NVTX_API domain_pop(nvtxDomainHandle_t domain) {
  log_event("pop", domain, NULL);
  return NVTX_NO_PUSH_POP_TRACKING;
}

/* Ranges of a process: begun on one thread, ended on any; the number says which start an end belongs to. */

static nvtxRangeId_t NVTX_API domain_start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  static nvtxRangeId_t last = 0;
  const nvtxRangeId_t range = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
  Line line;
  begin(&line, "start");
  add_string(&line, "domain", text_of(domain));
  add(&line, ", \"range\": %llu", (unsigned long long)range);
  add_attributes(&line, attributes);
  finish(&line);
  return range;
}

static void NVTX_API domain_end(nvtxDomainHandle_t domain, nvtxRangeId_t range) {
  Line line;
  begin(&line, "end");
  add_string(&line, "domain", text_of(domain));
  add(&line, ", \"range\": %llu", (unsigned long long)range);
  finish(&line);
}

static void NVTX_API domain_mark(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  log_event("mark", domain, attributes);
}

/* Calls without a domain. */

static int NVTX_API push_ex(const nvtxEventAttributes_t* attributes) { return domain_push(NULL, attributes); }

static int NVTX_API push_a(const char* message) {
  log_text("push", NULL, "message", message);
  return NVTX_NO_PUSH_POP_TRACKING;
}

static int NVTX_API pop(void) { return domain_pop(NULL); }

static void NVTX_API mark_ex(const nvtxEventAttributes_t* attributes) { domain_mark(NULL, attributes); }

static void NVTX_API mark_a(const char* message) { log_text("mark", NULL, "message", message); }

static void NVTX_API name_os_thread(uint32_t thread, const char* name) {
  Line line;
  begin(&line, "name_thread");
  add_string(&line, "domain", "");
  add(&line, ", \"thread\": %lu", (unsigned long)thread);
  add_string(&line, "message", text_of(name));
  finish(&line);
}

static void set(NvtxFunctionTable table, unsigned int size, unsigned int id, NvtxFunctionPointer function) {
  if (id < size && table[id] != NULL) *table[id] = function;
}

#define SET(id, function) set(table, size, (id), (NvtxFunctionPointer)(function))

EXPORT int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table);

EXPORT int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  const NvtxExportTableCallbacks* callbacks = get_export_table(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table = NULL;
  unsigned int size = 0;
  pthread_once(&log_once, open_log);
  if (callbacks == NULL || log_fd < 0) return 0;

  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) return 0;
  SET(NVTX_CBID_CORE_MarkEx, mark_ex);
  SET(NVTX_CBID_CORE_MarkA, mark_a);
  SET(NVTX_CBID_CORE_RangePushEx, push_ex);
  SET(NVTX_CBID_CORE_RangePushA, push_a);
  SET(NVTX_CBID_CORE_RangePop, pop);
  SET(NVTX_CBID_CORE_NameOsThreadA, name_os_thread);

  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  SET(NVTX_CBID_CORE2_DomainMarkEx, domain_mark);
  SET(NVTX_CBID_CORE2_DomainRangePushEx, domain_push);
  SET(NVTX_CBID_CORE2_DomainRangePop, domain_pop);
  SET(NVTX_CBID_CORE2_DomainRangeStartEx, domain_start);
  SET(NVTX_CBID_CORE2_DomainRangeEnd, domain_end);
  SET(NVTX_CBID_CORE2_DomainRegisterStringA, domain_register_string);
  SET(NVTX_CBID_CORE2_DomainCreateA, domain_create);
  return 1;
}
