"""Reads orders from XML, and writes a sum into it."""

import xml.etree.ElementTree as ET

TEXT = """<orders><order id="1"><item price="2.5" count="2"/><item price="1" count="1"/></order>
<order id="2"/></orders>"""


def total(order):
    return sum(float(item.get("price")) * int(item.get("count")) for item in order.iter("item"))


root = ET.fromstring(TEXT)
for order in root.findall("order"):
    ET.SubElement(order, "total").text = f"{total(order):.2f}"
assert [order.findtext("total") for order in root] == ["6.00", "0.00"]
assert root.find("order[@id='2']/total").text == "0.00"
again = ET.fromstring(ET.tostring(root))
assert [item.attrib for item in again.iter("item")][1] == {"price": "1", "count": "1"}
