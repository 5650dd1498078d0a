/* Puts every buffer that torch asks for against a page that may not be touched: one byte beyond
 * its end (or, with GUARD_START, before its start) ends the process, as does use after free. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#define PAGE 4096ul
#define ARENA (1ul << 37)
static char *base;
static uint64_t *sizes; /* bytes asked for, by first page */
static uint64_t next;
static int at_start;
static void (*real_free)(void *);
static void *(*real_realloc)(void *, size_t);
__attribute__((constructor)) static void start(void) {
  real_free = dlsym(RTLD_NEXT, "free");
  real_realloc = dlsym(RTLD_NEXT, "realloc");
  at_start = getenv("GUARD_START") != 0;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  sizes = mmap(0, ARENA / PAGE * 8, PROT_READ | PROT_WRITE, flags, -1, 0);
  base = mmap(0, ARENA, PROT_NONE, flags, -1, 0);
}
static int inside(void *p) { return base && (char *)p >= base && (char *)p < base + ARENA; }
static uint64_t page(void *p) { return ((uint64_t)((char *)p - base)) / PAGE; }
int posix_memalign(void **out, size_t align, size_t size) {
  uint64_t pages = (size + PAGE - 1) / PAGE + (size == 0);
  uint64_t first = __sync_fetch_and_add(&next, pages + 1) + 1;
  if (size > (1ul << 30) || (first + pages + 1) * PAGE >= ARENA) return ENOMEM;
  char *p = base + first * PAGE;
  if (mprotect(p, pages * PAGE, PROT_READ | PROT_WRITE)) return ENOMEM;
  uint64_t slack = at_start || align > 64 ? 0 : (pages * PAGE - size) & ~15ul;
  sizes[first] = pages;
  *out = p + slack;
  return 0;
}
void free(void *p) {
  if (!inside(p)) { if (real_free) real_free(p); return; }
  uint64_t first = page(p);
  while (!sizes[first]) first--;
  char *q = base + first * PAGE;
  madvise(q, sizes[first] * PAGE, MADV_DONTNEED);
  mprotect(q, sizes[first] * PAGE, PROT_NONE);
}
void *realloc(void *p, size_t size) {
  if (!inside(p)) return real_realloc(p, size);
  void *q = malloc(size);
  uint64_t first = page(p);
  while (!sizes[first]) first--;
  uint64_t have = base + (first + sizes[first]) * PAGE - (char *)p;
  memcpy(q, p, have < size ? have : size);
  free(p);
  return q;
}
