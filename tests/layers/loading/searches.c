/* Searches for symbols as programs do: in a library, everywhere, and in the libraries behind its own. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **arguments) {
  void *library = count > 1 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  void *get_table = library != NULL ? dlsym(library, "GetPjrtApi") : NULL;
  const size_t *(*function)(void);
  memcpy(&function, &get_table, sizeof function);
  printf("table %s\n", function != NULL && function() != NULL ? "yes" : "no");
  printf("again %s\n", library != NULL && dlsym(library, "GetPjrtApi") == get_table ? "same" : "another");
  printf("everywhere %s\n", dlsym(RTLD_DEFAULT, "malloc") != NULL ? "yes" : "no");
  printf("next %s\n", dlsym(RTLD_NEXT, "malloc") != NULL ? "yes" : "no");
  printf("missing %s\n", dlsym(RTLD_DEFAULT, "no_such_symbol_at_all") != NULL ? "yes" : "no");
  printf("reason %s\n", dlerror() != NULL ? "yes" : "no");
  return 0;
}
