"""Writes a C++ file that costs its compiler a lot of memory: many classes and deep templates."""

import sys

count = int(sys.argv[1])
print("template<int N, class T> struct L { L<N - 1, T> next; T v; int f() const { return next.f() + N; } };")
print("template<class T> struct L<0, T> { T v; int f() const { return 0; } };")
print("template<class... T> struct P {};")
print("template<class A, class B> struct J;")
print("template<class... A, class... B> struct J<P<A...>, P<B...>> { using type = P<A..., B...>; };")
for i in range(count):
    print(f"struct C{i} {{ int a[{i + 1}]; int g(int x) {{ int s = 0; for (int k = 0; k < {i + 1}; k++)"
          f" s += a[k] * x + k; return s; }} }};")
    print(f"int use{i}() {{ static L<40, C{i}> l; C{i} c{{}}; return l.f() + c.g({i}); }}")
    if i:
        print(f"using J{i} = J<P<C{i}, C{i - 1}>, P<L<{i % 40}, C{i}>>>::type; int n{i}(J{i}) {{ return {i}; }}")
