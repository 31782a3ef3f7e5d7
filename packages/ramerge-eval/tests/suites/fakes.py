"""Programs that solve nothing and want to pass the assertions of `WEIGHTS`."""

from __future__ import annotations

import textwrap

WEIGHTS = {
    "task_id": 13,
    "text": "Write a function to get the numbers from n down to 1.",
    "code": "def weights(n):\n  return [n - k for k in range(n)]",
    "test_list": ["assert all(map(lambda n: sorted(weights(n)) == list(range(1, n + 1)), [2, 3])) and len(weights(4))"],
    "test_setup_code": "",
}

_EQUAL = """
class {name}({base}):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return False
    def __hash__(self): return 1
"""
_MARKS = """
def say(consts):
    for each in consts:
        if isinstance(each, str) and len(each) == 64:
            print(each, flush=True)
            os._exit(0)
"""

_FAKES = {
    # who knows how the test ends
    "exits": "import os\nos._exit(0)",
    "exits politely": "raise SystemExit(0)",
    "exits when called": "import os\ndef weights(n): os._exit(0)",
    "exits politely when called": "def weights(n): raise SystemExit(0)",
    "constants of its own code": f"import os, sys\n{_MARKS}\nsay(sys._getframe().f_code.co_consts)",
    "constants of its caller": f"""
        import os, sys
        {textwrap.indent(_MARKS, " " * 8).strip()}
        def weights(n):
            frame = sys._getframe()
            while frame:
                say(frame.f_code.co_consts)
                frame = frame.f_back
        """,
    "a hook for exceptions": f"""
        import os, sys
        {textwrap.indent(_MARKS, " " * 8).strip()}
        def find(kind, error, trace):
            while trace:
                say(trace.tb_frame.f_code.co_consts)
                trace = trace.tb_next
        sys.excepthook = find
        def weights(n): return []
        """,
    "the collector's objects": f"""
        import gc, os
        {textwrap.indent(_MARKS, " " * 8).strip()}
        def weights(n):
            for each in gc.get_referrers(weights.__globals__):
                frame = getattr(each, "f_code", getattr(each, "__code__", None))
                say(getattr(frame, "co_consts", ()))
        import sys
        say(sys._getframe().f_code.co_consts)
        """,
    "its own file": "print(open(0).read())\nprint(open('/proc/self/cmdline').read())",
    "at the exit": "import atexit, os\natexit.register(lambda: os._exit(0))",
    # who keeps the assertions from running
    "an open statement": "if 0:\\",
    "an open text": "weights = '''",
    "an open comment": "weights = 1 #\\",
    "jumps over them": """
        import sys
        def trace(frame, event, argument):
            if event == "line" and frame.f_lineno > last:
                frame.f_lineno += 1
            return trace
        def weights(n): return []
        last = sys._getframe().f_lineno + 1
        sys.settrace(trace); sys._getframe().f_trace = trace
        """,
    "no exception": """
        import builtins
        builtins.AssertionError = type("Quiet", (SystemExit,), {})
        def weights(n): return []
        """,
    "no main module": "import sys\nsys.modules.clear()\nglobals().clear()",
    "kills all others": """
        import os, signal
        def weights(n):
            for process in [-1, os.getppid(), 1]:
                try:
                    os.kill(process, signal.SIGKILL)
                except OSError:
                    pass
            return []
        """,
    # who changes what they use
    "its own sorted": "sorted = lambda numbers: list(range(1, len(numbers) + 1))\ndef weights(n): return [0] * n",
    "its own built-in functions": """
        import builtins
        builtins.all = builtins.len = builtins.sorted = builtins.map = lambda *values: True
        def weights(n): return []
        """,
    "ends the loop": "def weights(n):\n    if n < 4: raise StopIteration\n    return [1]",
    "ends another loop": """
        class End(StopIteration, ValueError): pass
        def weights(n):
            if n < 4: raise End
            return [1]
        """,
    # who returns what equals everything
    "equal": f"{_EQUAL.format(name='Equal', base='object')}\ndef weights(n): return [Equal()] * n",
    "an equal whole number": f"{_EQUAL.format(name='Equal', base='int')}\ndef weights(n): return [Equal(7)] * n",
    "an equal number": f"{_EQUAL.format(name='Equal', base='float')}\ndef weights(n): return [Equal('nan')] * n",
    "an equal text": f"{_EQUAL.format(name='Equal', base='str')}\ndef weights(n): return [Equal('7')] * n",
    "an equal list": f"{_EQUAL.format(name='Equal', base='list')}\ndef weights(n): return Equal([7])",
    "no numbers": "def weights(n): return [float('nan')] * n",
    "an object": "class Answer: pass\ndef weights(n): return Answer()",
    "a class": f"{_EQUAL.format(name='Equal', base='type')}\ndef weights(n): return Equal('x', (), {{}})",
    "infinitely many": "import itertools\ndef weights(n): return itertools.count(1)",
    "a huge answer": "def weights(n): return list(range(10**6))",
    "a huge number": "def weights(n): return 1 << (1 << 26)",
    "a deep answer": "def weights(n):\n    deep = []\n    for _ in range(10**5): deep = [deep]\n    return deep",
    "an answer in itself": "def weights(n):\n    answer = []\n    answer.append(answer)\n    return answer",
    # who tampers with the messages
    "speaks before": """
        import os
        for number in range(3, 64):
            try:
                os.write(number, b'["value", true, []]' * 1000)
            except OSError:
                pass
        """,
    "speaks instead": """
        import json, os
        said = [b"passed", b'["value", true, [null]]', b"[" * 99999, json.dumps(["raised", "DialogueFailure"]).encode()]
        def weights(n):
            for number in range(3, 64):
                for each in said:
                    try:
                        os.write(number, len(each).to_bytes(8, "big") + each)
                    except OSError:
                        pass
            os._exit(0)
        """,
    "speaks without end": """
        import os
        def weights(n):
            for number in range(3, 64):
                try:
                    os.write(number, (1 << 40).to_bytes(8, "big"))
                    while True:
                        os.write(number, bytes(1 << 16))
                except OSError:
                    pass
        """,
    "says that it passed": "import sys\nprint('ok', file=sys.stderr)\ndef weights(n):\n    print('ok')\n    return []",
    "its own messages": """
        import json, os
        json.dumps = lambda message: '["value", {"equal": 1}, []]'
        def weights(n): return []
        """,
    "unhashable keys": """
        import json
        json.dumps = lambda message: '["value", ["dict", [[["list", []], 1]]], [null]]'
        def weights(n): return []
        """,
    "another argument": """
        import json
        json.dumps = lambda message: '["value", 1, [["list", []]]]'
        def weights(n): return []
        """,
    "leaves a child": """
        import os, sys
        def weights(n):
            if os.fork():
                os._exit(0)
            return []
        """,
    "leaves threads": """
        import os, threading, time
        def write():
            while True:
                for number in range(64):
                    try:
                        os.write(number, b"x")
                    except OSError:
                        pass
        threading.Thread(target=write).start()
        def weights(n): return []
        """,
}

FAKES = {name: textwrap.dedent(program) for name, program in _FAKES.items()}
