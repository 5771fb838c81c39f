// A library that waits, in each of the ways in which C++ waits, for a thread of its own that calls Python: with the GIL
// held it waits for ever. Its caller has the GIL.

#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <ctime>
#include <future>
#include <mutex>
#include <shared_mutex>
#include <thread>

namespace {

using Callback = void (*)();

struct Made {
  explicit Made(std::atomic<bool> &begun, Callback callback) {
    begun = true;
    callback();
  }
};

void make_static(std::atomic<bool> &begun, Callback callback) { static Made made(begun, callback); }

timespec in_an_hour(clockid_t clock) {
  timespec time;
  clock_gettime(clock, &time);
  time.tv_sec += 3600;
  return time;
}

// A condition of POSIX that the thread sets, and `wait` waits for.
template <typename Wait>
void by_condition(Callback callback, Wait wait) {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
  bool done = false;
  std::thread thread([&] {
    callback();
    pthread_mutex_lock(&mutex);
    done = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
  });
  pthread_mutex_lock(&mutex);
  while (!done) wait(&changed, &mutex);
  pthread_mutex_unlock(&mutex);
  thread.join();
}

// The thread takes a lock and then calls Python; `lock` wants the same.
template <typename Take, typename Give, typename Lock>
void by_lock(Callback callback, Take take, Give give, Lock lock) {
  std::atomic<bool> taken{false};
  std::thread thread([&] {
    take();
    taken = true;
    callback();
    give();
  });
  while (!taken) std::this_thread::yield();
  lock();
  give();
  thread.join();
}

}  // namespace

extern "C" {

void wait_by_cond_wait(Callback callback) { by_condition(callback, pthread_cond_wait); }

void wait_by_cond_timedwait(Callback callback) {
  by_condition(callback, [](pthread_cond_t *changed, pthread_mutex_t *mutex) {
    const timespec until = in_an_hour(CLOCK_REALTIME);
    pthread_cond_timedwait(changed, mutex, &until);
  });
}

void wait_by_cond_clockwait(Callback callback) {
  by_condition(callback, [](pthread_cond_t *changed, pthread_mutex_t *mutex) {
    const timespec until = in_an_hour(CLOCK_MONOTONIC);
    pthread_cond_clockwait(changed, mutex, CLOCK_MONOTONIC, &until);
  });
}

void wait_by_condition_variable(Callback callback) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::thread thread([&] {
    callback();
    std::lock_guard<std::mutex> lock(mutex);
    done = true;
    changed.notify_all();
  });
  {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [&] { return done; });
  }
  thread.join();
}

void wait_by_future(Callback callback) {
  std::promise<void> promise;
  std::thread thread([&] {
    callback();
    promise.set_value();
  });
  promise.get_future().wait();
  thread.join();
}

void wait_by_mutex(Callback callback) {
  std::mutex mutex;
  by_lock(callback, [&] { mutex.lock(); }, [&] { mutex.unlock(); }, [&] { mutex.lock(); });
}

void wait_by_shared_lock(Callback callback) {
  pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
  by_lock(
      callback, [&] { pthread_rwlock_wrlock(&lock); }, [&] { pthread_rwlock_unlock(&lock); },
      [&] { pthread_rwlock_rdlock(&lock); });
}

void wait_by_exclusive_lock(Callback callback) {
  pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
  by_lock(
      callback, [&] { pthread_rwlock_rdlock(&lock); }, [&] { pthread_rwlock_unlock(&lock); },
      [&] { pthread_rwlock_wrlock(&lock); });
}

void wait_by_static(Callback callback) {
  std::atomic<bool> begun{false};
  std::thread thread([&] { make_static(begun, callback); });
  while (!begun) std::this_thread::yield();
  make_static(begun, callback);
  thread.join();
}

void wait_by_semaphore(Callback callback) {
  sem_t semaphore;
  sem_init(&semaphore, 0, 0);
  std::thread thread([&] {
    callback();
    sem_post(&semaphore);
  });
  while (sem_wait(&semaphore) != 0) {
  }
  thread.join();
}

void wait_by_futex(Callback callback) {
  std::atomic<int> done{0};
  std::thread thread([&] {
    callback();
    done = 1;
    syscall(SYS_futex, &done, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
  });
  while (done == 0) syscall(SYS_futex, &done, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
  thread.join();
}
}
