/* Of libchains.so (near_) and, opened at run time, liblate.so (late_). */
typedef void (*callback)(void *);

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define NAME(x) JOIN(PREFIX, x)

#ifdef __cplusplus
extern "C" {
#endif
void near_enter(callback f, void *t, int n);
void near_nothing(void);
void late_enter(callback f, void *t, int n);
#ifdef __cplusplus
}
#endif
