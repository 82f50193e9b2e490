"""Environment variables: what really reads them, what they do, and where they belong."""

from holdfast.core.cards.variable import Variable

KIND = Variable
