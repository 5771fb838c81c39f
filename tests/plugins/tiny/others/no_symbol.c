/* A library that is no plugin: it exports something, but no GetPjrtApi. */
__attribute__((visibility("default"))) int not_a_plugin(void);
int not_a_plugin(void) { return 42; }
