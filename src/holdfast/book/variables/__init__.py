"""Environment variables: what really reads them, what they do, and where they belong."""

from holdfast.book.kinds.variable import Variable

KIND = Variable
