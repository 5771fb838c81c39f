"""Conformance: whether a device is right, by the reference interpreter and by what every device must do.

``check_device("my.py:make_client")`` is ``pjrt test-device``. The table of operations (``operations``, ``cases_of``)
has the smallest programs of each operation of StableHLO, with arguments and the accuracy that results must have; it
knows no device. This package must not know any one device but the judge, ``reference``.
"""

from pjrt.conformance.device_test import check_device
from pjrt.conformance.finding import Finding, Kind
from pjrt.conformance.operation_case import OperationCase
from pjrt.conformance.operation_table import cases_of, operations
from pjrt.conformance.plan import Choice
from pjrt.conformance.report import Report

__all__ = ["Choice", "Finding", "Kind", "OperationCase", "Report", "cases_of", "check_device", "operations"]
