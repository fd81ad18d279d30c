"""How a kernel's source is read: ``and``, ``or`` and ``not`` of blocks are elementwise, as in a compiled kernel.

Interpreted as Python, ``a and b`` of two blocks is ``b``: triton's own ``tl.argmax`` is written so.
"""

import ast

import triton.language as tl
from triton.runtime import interpreter


def logical_and(left, right):
    return interpreter.interpreter_semantic.logical_and(left, right()) if isinstance(left, tl.tensor) else left and right()


def logical_or(left, right):
    return interpreter.interpreter_semantic.logical_or(left, right()) if isinstance(left, tl.tensor) else left or right()


def logical_not(value):
    return interpreter.interpreter_semantic.not_(value) if isinstance(value, tl.tensor) else not value


class ElementwiseLogic(interpreter.ASTTransformer):
    """In the place of triton's transformer, which it extends. The right operands become functions, evaluated where Python would."""

    def visit_Assign(self, node):
        node.value = self.visit(node.value)
        return super().visit_Assign(node)

    def visit_BoolOp(self, node):
        self.generic_visit(node)
        name = "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        result = node.values[0]
        for value in node.values[1:]:
            result = ast.Call(ast.Name(name, ast.Load()), [result, ast.Lambda(nothing, value)], [])
        return result

    def visit_UnaryOp(self, node):
        self.generic_visit(node)
        return ast.Call(ast.Name("logical_not", ast.Load()), [node.operand], []) if isinstance(node.op, ast.Not) else node


def install() -> None:
    """Reads every kernel from here on so. Functions that triton's module names are put into each kernel's globals."""
    interpreter.FunctionRewriter.ast_transformer = ElementwiseLogic()
    interpreter.logical_and, interpreter.logical_or, interpreter.logical_not = logical_and, logical_or, logical_not
